"""A DataLoader with its own collate function, a model that takes a mask, and adaptation of uncertain images only.

    python examples/data_loader.py

A toy network is trained here to classify the direction of stripes in a mask, then tested in fog.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader

import sita_adapters as sita

torch.manual_seed(0)


def make_item(number: int, fog: float = 0.0) -> dict:
    """Return one item: noisy stripes in one of four directions through fog, inside a mask, with an id."""
    y, x = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
    angle = (number % 4 + 0.15 * torch.randn(())) * torch.pi / 4
    stripes = torch.sin(0.9 * (x * angle.cos() + y * angle.sin()) + 6.28 * torch.rand(()))
    mask = ((x - 12) ** 2 + (y - 12) ** 2 < torch.randint(40, 140, ())).float()
    image = 0.5 + (1 - fog) * (0.4 * stripes * mask + 0.15 * torch.randn(24, 24))
    return {"image": image[None], "mask": mask[None], "label": torch.tensor(number % 4), "id": f"scan-{number:03d}"}


def collate(items: list[dict]) -> dict:
    stacked = {key: torch.stack([item[key] for item in items]) for key in ("image", "mask", "label")}
    return {**stacked, "id": [item["id"] for item in items]}


class MaskedClassifier(nn.Module):
    """Classifies by the features inside the mask."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in ((1, 16), (16, 32))]
        self.body, self.head = nn.Sequential(*sum(blocks, ())), nn.Linear(32, 4)

    def forward(self, image: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the scores of four directions."""
        return self.head((self.body(image) * mask).sum((2, 3)) / mask.sum((2, 3)))


source = MaskedClassifier()
optimizer = torch.optim.Adam(source.parameters(), 1e-2)
for batch in DataLoader([make_item(n) for n in range(1600)], batch_size=16, shuffle=True, collate_fn=collate):
    optimizer.zero_grad()
    nn.functional.cross_entropy(source(batch["image"], mask=batch["mask"]), batch["label"]).backward()
    optimizer.step()
adapted = sita.adapt(source.eval())


@torch.inference_mode()
def predict(images: torch.Tensor, masks: torch.Tensor, threshold: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scores, and for which images they are adapted: where the source's entropy is above the threshold."""
    scores = source(images, mask=masks)
    uncertain = torch.distributions.Categorical(logits=scores).entropy() > threshold  # in nats
    if uncertain.any():  # the views apply to an image and its mask alike
        scores[uncertain] = adapted(images[uncertain], mask=masks[uncertain])
    return scores, uncertain


for fog in (0.0, 0.3, 0.6):
    count, wrong = 0, []
    for batch in DataLoader([make_item(n, fog) for n in range(200)], batch_size=16, collate_fn=collate):
        scores, uncertain = predict(batch["image"], batch["mask"])
        count += int(uncertain.sum())
        wrong += [batch["id"][place] for place in (scores.argmax(1) != batch["label"]).nonzero()]
    print(f"fog {fog}: {count} of 200 images adapted; wrong: {', '.join(wrong) or 'none'}")
