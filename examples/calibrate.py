"""Choose the recipe for a model, on clean images of your own without labels, and store it.

    python examples/calibrate.py

`sita.calibrate` measures how far clean images are from the model's statistics in every layer, and adapts only to what
is further off. A toy network is trained here to classify the direction of stripes, then tested in fog with the source
model, the default and the calibrated recipe.
"""

import torch
from torch import nn

import sita_adapters as sita

torch.manual_seed(0)


def stripes(count: int, fog: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return 24×24 images of noisy stripes in one of four directions, and the directions."""
    labels = torch.randint(0, 4, (count,))
    angle = (labels + 0.3 * torch.randn(count)).view(-1, 1, 1) * torch.pi / 4
    y, x = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
    pattern = torch.sin(0.9 * (x * angle.cos() + y * angle.sin()) + 6.28 * torch.rand(count, 1, 1))
    return 0.5 + (1 - fog) * (0.4 * pattern + 0.1 * torch.randn(count, 24, 24)).unsqueeze(1), labels


blocks = [(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in ((1, 16), (16, 32), (32, 32))]
model = nn.Sequential(*sum(blocks, ()), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for _ in range(150):
    images, labels = stripes(64)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
model.eval()
clean, _ = stripes(128)  # yours: images like those the model was trained on; no labels needed
recipe = sita.calibrate(model, clean)
stored = recipe.to_json()  # what `sita calibrate` writes, and `--recipe recipe.json` reads
print(f"{recipe.notes}\n\nchosen: {recipe}\n")

conditions = {"clean": stripes(400), "light fog": stripes(400, fog=0.25), "thick fog": stripes(400, fog=0.5)}
models = {
    "source": model,
    "auto": sita.adapt(model),
    "calibrated": sita.adapt(model, sita.Recipe.from_json(stored)),
}
print(" " * 10 + "".join(f"{name:>20}" for name in conditions))
for name, each in models.items():
    cells = []
    for images, labels in conditions.values():
        with torch.inference_mode():
            right = (each(images).argmax(1) == labels).float().mean()
        cells.append(f"{100 * right:.1f} % right")
    print(f"{name:<10}" + "".join(f"{cell:>20}" for cell in cells))
