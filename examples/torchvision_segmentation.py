"""A torchvision segmentation model: an OrderedDict with "out" and "aux" comes out, adapted or not.

    python examples/torchvision_segmentation.py

`max_rows` limits memory: an image becomes 15 rows here, of which 4 run at once, with the same result. The weights are
untrained: this shows how to connect things, not accuracy.
"""

import torch

# Only needed where torchvision does not match the installed torch.
import sita_workbench.models.torchvision_compat  # noqa: F401

# isort: split
from torchvision.models.segmentation import deeplabv3_mobilenet_v3_large

import sita_adapters as sita

torch.manual_seed(0)
torch.set_num_threads(1)


def draw_streets(count: int) -> torch.Tensor:
    """Return images 64 high and 96 wide: a bright sky above a dark road, with noise."""
    y = torch.linspace(0, 1, 64).view(1, 1, 64, 1)
    horizon = 0.3 + 0.4 * torch.rand(count, 1, 1, 1)
    sky = torch.sigmoid(20 * (horizon - y)).expand(count, 3, 64, 96)
    return sky + 0.2 * torch.randn(count, 3, 64, 96)


model = deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5, aux_loss=True)
with torch.no_grad():  # stands in for training: gives BatchNorm the statistics of clear streets
    for _ in range(10):
        model.train()(draw_streets(4))
model.eval()

adapted = sita.adapt(model, task="segmentation")
frugal = sita.adapt(model, task="segmentation", max_rows=4)

foggy = 0.6 + 0.3 * draw_streets(2)
with torch.inference_mode():
    before, after, slowly = model(foggy), adapted(foggy), frugal(foggy)

print(f"{type(adapted).__name__}, untrained, {sita.describe(adapted).rows} rows per image; its output, as before:")
for name in after:
    print(f"  {type(after).__name__}[{name!r}] {tuple(before[name].shape)} -> {tuple(after[name].shape)}")
changed = (before["out"].argmax(1) != after["out"].argmax(1)).float().mean()
same = torch.allclose(after["out"], slowly["out"], atol=1e-4)
print(f"max_rows=4 gives the same answer: {same}")
print(f"pixels whose label changed in fog: {100 * changed:.1f} %")
