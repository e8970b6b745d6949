"""`sita calibrate`, as a user types it, and the recipe that it writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from invoking import invoke
from PIL import Image

import sita_adapters as sita
from sita_workbench.demo.digits import load_digits
from sita_workbench.models.digits import as_pictures
from sita_workbench.models.loading import load_model


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Forty clean digits, which the demo's network reads."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "digits"
    folder.mkdir()
    for index, picture in enumerate(as_pictures(load_digits()[1].images[:40])):
        Image.fromarray(picture).save(folder / f"{index:02}.png")
    return folder


def test_the_recipe_that_it_writes_serves_the_other_commands(digits: Path, tmp_path: Path) -> None:
    output = invoke("calibrate", "digits", digits, "--movement", 0.3, "--out", "mine.json")
    recipe = sita.Recipe.from_json((tmp_path / "mine.json").read_text())
    loaded = load_model("digits")
    pixels = np.stack([np.asarray(Image.open(path)) for path in sorted(digits.iterdir())])
    images = loaded.arrange(loaded.encode(pixels))
    wanted = sita.calibrate(loaded.model, images, movement=0.3)
    assert (recipe, recipe.notes) == (wanted, wanted.notes)
    assert recipe.rule.layers
    assert recipe.notes in output
    said = json.loads(invoke("predict", "digits", digits / "00.png", "--recipe", "mine.json", "--json"))
    assert str(recipe) in json.dumps(said, ensure_ascii=False)


def test_images_of_several_sizes_are_refused(digits: Path, tmp_path: Path) -> None:
    Image.new("RGB", (9, 9)).save(digits / "small.png")
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef build(): return nn.BatchNorm2d(3), {'inputs': 'unit'}\n"
    )
    with pytest.raises(sita.SitaError, match=r"one size; received .*9 × 9.* Try: --size"):
        invoke("calibrate", "net.py:build", digits)
