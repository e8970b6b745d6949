"""Adapt a model in three lines, and see what it cost and did.

    python examples/quickstart.py

Any trained model with BatchNorm works. Here a small one is trained to classify the direction of stripes, and is then
tested on the same stripes in fog.
"""

import torch
from torch import nn

import sita_adapters as sita

torch.manual_seed(0)


def stripes(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return 24×24 images of noisy stripes in one of four directions, and the directions."""
    labels = torch.randint(0, 4, (count,))
    angle = (labels + 0.3 * torch.randn(count)).view(-1, 1, 1) * torch.pi / 4
    y, x = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
    phase = 6.28 * torch.rand(count, 1, 1)
    pattern = torch.sin(0.9 * (x * angle.cos() + y * angle.sin()) + phase)
    return (0.5 + 0.4 * pattern + 0.1 * torch.randn(count, 24, 24)).unsqueeze(1), labels


def block(inner: int, outer: int) -> list[nn.Module]:
    return [nn.Conv2d(inner, outer, 3, 2, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]


blocks = [*block(1, 16), *block(16, 32), *block(32, 32)]
model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for _ in range(150):
    images, labels = stripes(64)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
model.eval()

adapted = sita.adapt(model, example=images)  # the model itself stays as it is
print(sita.describe(adapted), "\n")

images, labels = stripes(400)
foggy = 0.5 + 0.5 * images  # half of what the camera sees is haze
with torch.inference_mode():
    for name, seen in (("clear", images), ("foggy", foggy)):
        for who, network in (("source", model), ("adapted", adapted)):
            share = (network(seen).argmax(1) == labels).float().mean()
            print(f"{name} images, {who:<8} {100 * share:5.1f} % right")
