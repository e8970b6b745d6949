"""A timm model with its own transforms, on PIL images: adapted with one assignment, watched with `sita.observe`.

    python examples/timm_pipeline.py

A toy network is trained here to classify the direction of stripes, then tested in fog. It shows how to connect things.
A model that timm loads with `pretrained=True` is adapted by the same line.
"""

import numpy as np
import torch
from PIL import Image

# Only needed where torchvision does not match the installed torch.
import sita_workbench.models.torchvision_compat  # noqa: F401

# isort: split
import timm
from timm.data import create_transform, resolve_model_data_config

import sita_adapters as sita

torch.manual_seed(0)
torch.set_num_threads(1)
random = np.random.default_rng(0)


def take_photo(label: int, fog: float = 0.0) -> Image.Image:
    """Return a 40×40 photo of noisy stripes in one of four directions."""
    y, x = np.mgrid[:40, :40]
    angle = (label + 0.2 * random.normal()) * np.pi / 4
    stripes = np.sin(0.7 * (x * np.cos(angle) + y * np.sin(angle)) + random.uniform(0, 6.28))
    pixels = 120 + 70 * stripes[..., None] * random.uniform(0.5, 1, 3) + 25 * random.normal(size=(40, 40, 3))
    return Image.fromarray(((1 - fog) * pixels + 220 * fog).clip(0, 255).astype(np.uint8))


model = timm.create_model("test_resnet", pretrained=False, num_classes=4)
transform = create_transform(**resolve_model_data_config(model, {"input_size": (3, 32, 32)}))  # resize, crop, normalize
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for _ in range(60):
    labels = random.integers(0, 4, 32)
    scores = model(torch.stack([transform(take_photo(label)) for label in labels]))
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels)).backward()
    optimizer.step()
source = model.eval()

model = sita.adapt(model)  # the one line that an existing pipeline needs

labels = random.integers(0, 4, 60)
for name, fog in (("clear", 0.0), ("foggy", 0.6)):
    batch = torch.stack([transform(take_photo(label, fog)) for label in labels])
    with torch.inference_mode(), sita.observe(model) as observation:
        before, after = ((network(batch).argmax(1).numpy() == labels).mean() for network in (source, model))
    print(f"{name} photos: {100 * before:.0f} % right by the source model, {100 * after:.0f} % adapted")
    print(f"{observation.summary()}\n")
