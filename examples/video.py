"""A video, frame by frame: λ over time tells when fog comes up, and nothing is carried from one frame to the next.

    python examples/video.py

A toy network is trained here to classify the direction of stripes. The video shows one pattern that drifts and turns;
fog sets in after a third of it, and lifts again. Draws video.png, or the file that is named after the command.
"""

import sys

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

import sita_adapters as sita

torch.manual_seed(0)
FRAMES, ONSET, CLEAR_AGAIN = 90, 30, 75


def draw(labels: torch.Tensor, phase: torch.Tensor) -> torch.Tensor:
    """Return 48×48 images of noisy stripes in the directions of the labels."""
    angle = (labels + 0.2 * torch.randn(len(labels))).view(-1, 1, 1) * torch.pi / 4
    y, x = torch.meshgrid(torch.arange(48.0), torch.arange(48.0), indexing="ij")
    pattern = torch.sin(0.9 * (x * angle.cos() + y * angle.sin()) + phase.view(-1, 1, 1))
    return (0.5 + 0.4 * pattern + 0.1 * torch.randn(len(labels), 48, 48)).unsqueeze(1)


blocks = [(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in ((1, 16), (16, 32), (32, 32))]
model = nn.Sequential(*sum(blocks, ()), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for _ in range(120):
    labels = torch.randint(0, 4, (64,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(draw(labels, 6.28 * torch.rand(64))), labels).backward()
    optimizer.step()

time = torch.arange(FRAMES)
truth = time // 12 % 4
fog = 0.6 * ((time - ONSET) / 20).clamp(0, 1) * ((CLEAR_AGAIN - time) / 8).clamp(0, 1)
video = (1 - fog.view(-1, 1, 1, 1)) * draw(truth, 0.4 * time) + 0.9 * fog.view(-1, 1, 1, 1)

adapted = sita.adapt(model.eval())
with torch.inference_mode(), sita.observe(adapted) as observation:
    answers = torch.cat([adapted(frame[None]) for frame in video])
    plain = model(video).argmax(1)
bold = observation.layer_priors.mean(2).min(1)  # of the candidate that adapts, on average over the layers

with torch.inference_mode():  # again, in another order: each frame gets the answer that it got
    order = torch.randperm(FRAMES)
    again = torch.cat([adapted(video[place][None]) for place in order])
print(f"frames shuffled and played again: answers differ by {(again - answers[order]).abs().max():.1e}")
in_fog = fog > 0
for who, labels in (("source", plain), ("adapted", answers.argmax(1))):
    clear, foggy = ((labels == truth)[frames].float().mean() for frames in (~in_fog, in_fog))
    print(f"{who:<8} {100 * clear:5.1f} % of clear frames right, {100 * foggy:5.1f} % in fog")
print(f"λ: {bold[~in_fog.numpy()].mean():.2f} on clear frames, {bold[in_fog.numpy()].mean():.2f} in fog")

figure = Figure(figsize=(8, 3.4), dpi=120, layout="constrained")
axes = figure.subplots()
axes.fill_between(time, 0, fog, color="#9A9A9A", alpha=0.35, linewidth=0, label="fog")
axes.plot(time, bold, color="#0072B2", label="λ (1: the source model)")
wrong = [np.flatnonzero(labels != truth) for labels in (plain, answers.argmax(1))]
axes.plot(wrong[0], np.full(len(wrong[0]), 1.1), "|", color="#D55E00", label="source wrong")
axes.plot(wrong[1], np.full(len(wrong[1]), 1.2), "|", color="#222222", label="adapted wrong")
axes.set(xlabel="frame", ylim=(0, 1.3), xlim=(0, FRAMES - 1), yticks=(0, 0.5, 1), title="λ of every frame")
axes.legend(loc="lower left", fontsize=8, frameon=False)
figure.savefig(path := sys.argv[1] if len(sys.argv) > 1 else "video.png")
print(f"picture: {path}")
