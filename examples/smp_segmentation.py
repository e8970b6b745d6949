"""A Unet of segmentation_models_pytorch: one for classes that exclude each other, one for a binary mask.

    python examples/smp_segmentation.py

A binary mask is one sigmoid per pixel: with `scores="sigmoid"` the vote is on each pixel's yes or no. The weights are
untrained: this shows how to connect things, not accuracy.
"""

import torch

# Only needed where torchvision does not match the installed torch.
import sita_workbench.models.torchvision_compat  # noqa: F401

# isort: split
import segmentation_models_pytorch as smp

import sita_adapters as sita

torch.manual_seed(0)
torch.set_num_threads(1)


def draw_cells(count: int) -> torch.Tensor:
    """Return 64×64 images of bright spots on a noisy ground."""
    spots = torch.nn.functional.avg_pool2d(torch.randn(count, 3, 64, 64), 9, 1, 4)
    return (spots > 0.1).float() + 0.1 * torch.randn(count, 3, 64, 64)


def make_unet(classes: int) -> torch.nn.Module:
    """Return a Unet whose BatchNorm statistics are those of clear images, as after training."""
    model = smp.Unet("resnet18", encoder_weights=None, decoder_channels=(64, 32, 16, 16, 8), classes=classes)
    with torch.no_grad():
        for _ in range(10):
            model.train()(draw_cells(4))
    return model.eval()


dark = 0.3 * draw_cells(2)

model = source = make_unet(classes=3)
model = sita.adapt(model, task="segmentation")
with torch.inference_mode():
    classes, plain = model(dark).argmax(1), source(dark).argmax(1)
print(f"{type(model).__name__} of 3 classes, untrained: labels {tuple(classes.shape)}")
print(f"  pixels whose class changed on dark images: {100 * (classes != plain).float().mean():.1f} %")

model = source = make_unet(classes=1)
model = sita.adapt(model, task="segmentation", scores="sigmoid")
with torch.inference_mode(), sita.observe(model) as observation:
    mask, plain = model(dark).sigmoid() > 0.5, source(dark).sigmoid() > 0.5
print(f"{type(model).__name__} of a binary mask, untrained: mask {tuple(mask.shape)}")
print(f"  pixels whose answer changed on dark images: {100 * (mask != plain).float().mean():.1f} %")
print(f"  what was observed is the mask that came out: {bool((observation.answers == mask.numpy()).all())}")
