"""CIFAR-10-C at severity 5: the accuracy of a trained CIFAR ResNet under each recipe.

    python examples/cifar10c.py DATA --depth 20

DATA holds `cifar10c/` (the official files: one array per corruption, and labels.npy) and the weights,
`weights/cifar10_resnet20.safetensors`.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Column, Table

import sita_adapters as sita
from sita_workbench.networks.cifar_resnet import encode, load_cifar_resnet

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("data", type=Path)
parser.add_argument("--depth", type=int, default=20, choices=(20, 56))
parser.add_argument("--severity", type=int, default=5, choices=range(1, 6))
parser.add_argument("--recipes", default="source,ensemble,ptn,bn,augbn,shift,auto,ops_shared,ops")
parser.add_argument("--limit", type=int, default=None, help="images per corruption; all by default")
options = parser.parse_args()

torch.set_num_threads(1)
model = load_cifar_resnet(options.depth, options.data / "weights" / f"cifar10_resnet{options.depth}.safetensors")
recipes = options.recipes.split(",")
adapted = {recipe: sita.adapt(model, recipe) for recipe in recipes}
files = sorted(file for file in (options.data / "cifar10c").glob("*.npy") if file.stem != "labels")
labels = np.load(options.data / "cifar10c" / "labels.npy").astype(int)
block = len(labels) // 5
chosen = slice((options.severity - 1) * block, options.severity * block)

table = Table(
    Column("corruption", no_wrap=True),
    *recipes,
    title=f"ResNet-{options.depth}, severity {options.severity}, accuracy in %",
)
accuracies = []
for file in track(files, "scoring", console=Console(stderr=True)):
    images, truth = encode(np.load(file)[chosen][: options.limit]), labels[chosen][: options.limit]
    row = []
    for recipe in recipes:
        with torch.inference_mode():
            predicted = torch.cat([adapted[recipe](batch).argmax(1) for batch in images.split(16)])
        row.append(100 * float((predicted.numpy() == truth).mean()))
    accuracies.append(row)
    table.add_row(file.stem, *(f"{accuracy:.1f}" for accuracy in row))
table.add_section()
table.add_row("mean", *(f"{accuracy:.2f}" for accuracy in np.mean(accuracies, axis=0)))
Console().print(table)
