"""`sita calibrate`, as a user types it, and the recipe that it writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import sita_adapters as sita
from sita_workbench import cli
from sita_workbench.demo.digits import first, load_digits
from sita_workbench.models.digits import as_pictures
from sita_workbench.models.loading import load_model

NAME = "cifar10-resnet20"


def invoke(*arguments: object, fails: bool = False) -> str:
    result = CliRunner().invoke(cli.make_app(), [str(argument) for argument in arguments])
    if fails:
        assert result.exception is not None
        return f"{result.output} {result.exception}"
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Forty clean digits, which the demo's network reads."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "digits"
    folder.mkdir()
    for place, picture in enumerate(as_pictures(first(load_digits()[1], 40).images)):
        Image.fromarray(picture).save(folder / f"{place:02}.png")
    return folder


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    folder = tmp_path / "photos"
    folder.mkdir()
    random = np.random.default_rng(0)
    for place in range(20):
        pixels = random.integers(0, 256, (4, 4, 3), dtype=np.uint8).repeat(8, axis=0).repeat(8, axis=1)
        Image.fromarray(pixels).save(folder / f"{place}.png")
    return folder


def test_the_recipe_that_it_writes_serves_the_other_commands(digits: Path, tmp_path: Path) -> None:
    output = invoke("calibrate", "digits", digits, "--min-agreement", 0.9, "--out", "mine.json")
    recipe = sita.Recipe.from_json((tmp_path / "mine.json").read_text())
    loaded = load_model("digits")
    pixels = np.stack([np.asarray(Image.open(path)) for path in sorted(digits.iterdir())])
    images = loaded.arrange(loaded.encode(pixels))
    wanted = sita.calibrate(loaded.model, images, min_agreement=0.9)
    assert (recipe, recipe.notes) == (wanted, wanted.notes)
    assert recipe.name != "source"
    assert recipe.notes in output
    assert "--recipe mine.json" in output
    said = json.loads(invoke("predict", "digits", digits / "00.png", "--recipe", "mine.json", "--json"))
    assert str(recipe) in json.dumps(said, ensure_ascii=False)


def test_labels_count_where_there_are_any(photos: Path, tmp_path: Path) -> None:
    pixels, truth = np.stack([np.asarray(Image.open(path)) for path in sorted(photos.iterdir())]), np.arange(20) % 10
    np.savez(tmp_path / "labelled.npz", images=pixels, labels=truth)
    output = invoke("calibrate", NAME, "--weights", "random", "--data", "npz:labelled.npz")
    loaded = load_model(NAME, "random")
    right = (loaded.predict(loaded.model, loaded.encode(pixels)).argmax(-1) == truth).mean()
    assert f"{100 * right:.1f}%" in next(line for line in output.splitlines() if line.endswith("source: λ = 1"))


def test_where_nothing_suits_it_says_so(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "shy.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Shy(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.bn = nn.BatchNorm2d(3)\n"
        "    def forward(self, x):\n"
        "        y = self.bn(x)\n"
        "        moved = (y - x / (1 + 1e-5) ** 0.5).abs().mean((1, 2, 3)) > 1e-6\n"
        "        return torch.stack([1e4 * moved.float(), 0.5 + 0 * moved.float()], 1)\n"
        "def build():\n"
        "    return Shy().eval(), {'inputs': 'unit', 'size': 32, 'scores': 'logits'}\n"
    )
    output = invoke("calibrate", "shy.py:build", photos)
    assert "adapts nothing" in output
    assert sita.Recipe.from_json((tmp_path / "recipe.json").read_text()) == sita.RECIPES["source"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((NAME,), "Expected image files or --data"),
        ((NAME, "photos", "--data", "npz:x.npz"), "not both"),
        ((NAME, "photos", "--min-agreement", "2"), "--min-agreement"),
    ],
)
def test_what_it_cannot_do(photos: Path, arguments: tuple[str, ...], words: str) -> None:
    assert words in " ".join(invoke("calibrate", *arguments, fails=True).split())
