"""Evaluation under DDP, two processes on gloo: every image counted once, and the same result as in one process.

    python examples/distributed_evaluation.py

`DistributedSampler` repeats images until the processes have as many each, which counts some twice. A toy network is
trained here to classify the direction of stripes, then tested in fog.
"""

import tempfile

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import sita_adapters as sita

PROCESSES, IMAGES = 2, 201  # which two does not divide


def stripes(count: int, fog: float = 0.0) -> TensorDataset:
    """Return 24×24 images of noisy stripes in one of four directions, and the directions."""
    labels = torch.randint(0, 4, (count,))
    angle = (labels + 0.3 * torch.randn(count)).view(-1, 1, 1) * torch.pi / 4
    y, x = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
    pattern = torch.sin(0.9 * (x * angle.cos() + y * angle.sin()) + 6.28 * torch.rand(count, 1, 1))
    return TensorDataset(0.5 + (1 - fog) * (0.4 * pattern + 0.1 * torch.randn(count, 24, 24)).unsqueeze(1), labels)


def evaluate(network: nn.Module, images: TensorDataset, rank: int = 0, processes: int = 1) -> torch.Tensor:
    """Return the number of images in this process's share, and how many of them were classified correctly."""
    share = range(rank, len(images), processes)  # a sampler is whatever gives indices
    adapted = sita.adapt(network)
    seen = right = 0
    for batch, labels in DataLoader(images, batch_size=16, sampler=share):
        with torch.inference_mode():
            right += int((adapted(batch).argmax(1) == labels).sum())
        seen += len(batch)
    return torch.tensor([seen, right])


def work(rank: int, meeting: str, network: nn.Module, images: TensorDataset) -> None:
    """Run in each process: its own share of the images, then the sum over all."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=PROCESSES)
    trained = DistributedDataParallel(network)
    counts = evaluate(trained.module, images, rank, PROCESSES)  # adapt what DDP wraps: nothing is trained any more
    print(f"process {rank}: {counts[0]} images, {counts[1]} right", flush=True)
    dist.all_reduce(counts)
    if rank == 0:
        print(f"together: {counts[0]} images, {counts[1]} right", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.manual_seed(0)
    blocks = [(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in ((1, 16), (16, 32), (32, 32))]
    network = nn.Sequential(*sum(blocks, ()), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for images, labels in DataLoader(stripes(6400), batch_size=64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()
    foggy = stripes(IMAGES, fog=0.2)
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (f"{folder}/meeting", network.eval(), foggy), nprocs=PROCESSES)
    counts = evaluate(network, foggy)
    print(f"one process: {counts[0]} images, {counts[1]} right")
