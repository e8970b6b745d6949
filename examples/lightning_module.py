"""A LightningModule in `Trainer.predict`: the network inside it is replaced by the adapted one, the rest stays.

    python examples/lightning_module.py

A toy network is trained here to classify the direction of stripes, then tested in fog. It shows how to connect things.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

# Only needed where torchvision, which torchmetrics imports, does not match the installed torch.
import sita_workbench.models.torchvision_compat  # noqa: F401

# isort: split
import lightning

import sita_adapters as sita

torch.manual_seed(0)


class Classifier(lightning.LightningModule):
    """Any module that calls its network in `predict_step`."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in ((1, 16), (16, 32), (32, 32))]
        self.net = nn.Sequential(*sum(blocks, ()), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4))

    def predict_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return the probabilities of a batch."""
        return self.net(batch[0]).softmax(1)


def load(count: int, fog: float = 0.0) -> DataLoader:
    labels = torch.randint(0, 4, (count,))
    angle = (labels + 0.3 * torch.randn(count)).view(-1, 1, 1) * torch.pi / 4
    y, x = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
    stripes = torch.sin(0.9 * (x * angle.cos() + y * angle.sin()) + 6.28 * torch.rand(count, 1, 1))
    images = 0.5 + (1 - fog) * (0.4 * stripes + 0.1 * torch.randn(count, 24, 24)).unsqueeze(1)
    return DataLoader(TensorDataset(images, labels), batch_size=32)


module, foggy = Classifier(), load(200, fog=0.5)
optimizer = torch.optim.Adam(module.parameters(), 3e-3)
for images, labels in load(4800):
    optimizer.zero_grad()
    nn.functional.cross_entropy(module.net(images), labels).backward()
    optimizer.step()
trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
before = torch.cat(trainer.predict(module, foggy))
module.net = sita.adapt(module.net)  # the one line that an existing module needs
after = torch.cat(trainer.predict(module, foggy))
right = [(answers.argmax(1) == foggy.dataset.tensors[1]).float().mean() for answers in (before, after)]
print("foggy images: {:.1%} right by the source network, {:.1%} adapted".format(*right))
