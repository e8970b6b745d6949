"""A Hugging Face image-classification pipeline: its model is replaced by the adapted one, the rest stays.

    python examples/huggingface_pipeline.py

A toy network is trained here to classify the direction of stripes, then tested in fog. It shows how to connect things.
A pipeline of a checkpoint, `pipeline("image-classification", "name")`, is adapted by the same line.
"""

import numpy as np
import torch
from PIL import Image

# Only needed where torchvision does not match the installed torch.
import sita_workbench.models.torchvision_compat  # noqa: F401

# isort: split
from transformers import ConvNextImageProcessor, ResNetConfig, ResNetForImageClassification, pipeline

import sita_adapters as sita

torch.manual_seed(0)
torch.set_num_threads(1)
random = np.random.default_rng(0)
NAMES = {0: "upright", 1: "falling", 2: "level", 3: "rising"}


def take_photo(label: int, fog: float = 0.0) -> Image.Image:
    """Return a 40×40 photo of noisy stripes in one of four directions."""
    y, x = np.mgrid[:40, :40]
    angle = (label + 0.2 * random.normal()) * np.pi / 4
    stripes = np.sin(0.7 * (x * np.cos(angle) + y * np.sin(angle)) + random.uniform(0, 6.28))
    pixels = 120 + 70 * stripes[..., None] * random.uniform(0.5, 1, 3) + 25 * random.normal(size=(40, 40, 3))
    return Image.fromarray(((1 - fog) * pixels + 220 * fog).clip(0, 255).astype(np.uint8))


sizes = {"embedding_size": 16, "hidden_sizes": [16, 32, 64], "depths": [1, 1, 1], "layer_type": "basic"}
processor = ConvNextImageProcessor(size={"shortest_edge": 32}, crop_pct=0.875)
model = ResNetForImageClassification(ResNetConfig(**sizes, id2label=NAMES))
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for _ in range(40):
    labels = torch.from_numpy(random.integers(0, 4, 32))
    optimizer.zero_grad()
    model.train()(**processor([take_photo(int(k)) for k in labels], return_tensors="pt"), labels=labels).loss.backward()
    optimizer.step()

classifier = pipeline("image-classification", model=model.eval(), image_processor=processor, top_k=1)
photos = [take_photo(number % 4, fog=0.5) for number in range(40)]
before = classifier(photos)

classifier.model = sita.adapt(classifier.model)  # the one line that an existing pipeline needs

after = classifier(photos, batch_size=8)
for who, answers in (("source", before), ("adapted", after)):
    right = [answer[0]["label"] == NAMES[number % 4] for number, answer in enumerate(answers)]
    shown = ", ".join(f"{answer[0]['label']} {answer[0]['score']:.2f}" for answer in answers[:4])
    print(f"{who:<8} {100 * sum(right) / len(right):3.0f} % of foggy photos right; the first four: {shown}")
