"""Choose a cascade's threshold on images of your own: how many ordinary ones may be adapted decides it, not labels.

    python examples/calibrate_cascade.py

A cascade runs the source model, and the adapted one where the source is unsure. Put its threshold at a quantile of the
entropies on ordinary images, and all but that share of them costs no more than the source model. On stranger images it
is less sure, and more of them are adapted. A toy network is trained here to classify the direction of stripes.
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
optimiser = torch.optim.Adam(model.parameters(), 3e-3)
for _ in range(150):
    images, labels = stripes(64)
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimiser.step()
adapted = sita.adapt(model.eval(), "ops")  # 22 rows: worth a cascade

ordinary, _ = stripes(200)  # yours: images as the model usually gets them; no labels
with torch.inference_mode():
    log_p = model(ordinary).log_softmax(1)
entropies = -(log_p.exp() * log_p).sum(1)  # in nats, as a cascade measures them

conditions = {"ordinary": stripes(400), "light fog": stripes(400, fog=0.25), "thick fog": stripes(400, fog=0.5)}
rows = sita.describe(adapted).rows
print(f"{'adapted':>9} {'entropy':>8}   " + "   ".join(f"{name:^27}" for name in conditions))
for share in (0.0, 0.05, 0.1, 0.25, 1.0):
    threshold = float(entropies.quantile(1 - share)) if share < 1 else 0.0
    cascade = sita.cascade(model, adapted, entropy=threshold)
    cells = []
    for images, labels in conditions.values():
        cascade.tally.reset()
        with torch.inference_mode():
            right = (cascade(images).argmax(1) == labels).float().mean()
        cost = 1 + rows * cascade.tally.share
        cells.append(f"{100 * right:5.1f} % right at {cost:.2f} rows")
    print(f"{100 * share:7.0f} % {threshold:8.4f}   " + "   ".join(f"{cell:^27}" for cell in cells))
