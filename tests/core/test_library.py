"""The library as a package: what it imports, what its errors are, and that tests meet the frameworks themselves."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

import sita_adapters as sita
from sita_adapters.errors import torchvision_hint


def test_every_error_is_a_sita_error_and_the_builtin_one_would_catch() -> None:
    errors = [getattr(sita, name) for name in sita.__all__ if name.endswith("Error")]
    assert len(errors) >= 15
    for error in errors:
        assert issubclass(error, sita.SitaError)
        assert error is sita.SitaError or issubclass(error, ValueError | TypeError | RuntimeError | ImportError)


@pytest.mark.parametrize("module", ["sita_adapters", "sita_adapters.compare"])
def test_importing_the_library_imports_no_framework(module: str) -> None:
    frameworks = "('torch', 'keras', 'tensorflow', 'jax', 'scipy', 'typer')"
    code = f"import sys, {module}\nprint([name for name in {frameworks} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("torch=None, keras=None", "no such framework is installed. Remedy: pip install 'sita-adapters[torch]'"),
        ("keras=None", "Expected a model of torch; received"),
    ],
)
def test_only_frameworks_that_are_there_are_offered(missing: str, said: str) -> None:
    code = (
        f"import sys; sys.modules.update({missing})\n"
        "import sita_adapters as sita\n"
        "try:\n    sita.adapt(object())\nexcept sita.UnknownModelError as error:\n    print(error)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said in printed


def test_a_torchvision_for_another_torch_has_a_remedy() -> None:
    mismatch = RuntimeError("operator torchvision::nms does not exist")
    assert "import sita_workbench.models.torchvision_compat" in torchvision_hint(mismatch)
    assert torchvision_hint(RuntimeError("something else")) == ""


@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_no_folder_of_tests_stands_in_for_a_framework(framework: str) -> None:
    found = importlib.util.find_spec(framework)
    assert found is None or found.origin is not None, f"{framework} is a folder: {found.submodule_search_locations}"


@pytest.mark.parametrize("wrong", [{"std": (0.0,)}, {"std": float("nan")}, {"mean": ()}, {"white": -1}])
def test_encodings_that_make_no_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(sita.InputError, match="std and white above 0"):
        sita.Inputs(**wrong)


def test_an_encoding_has_an_order_of_its_channels() -> None:
    assert sita.Inputs(mean=0.5, std=0.5).mean == (0.5,)
    with pytest.raises(sita.InputError, match="'rgb' or 'bgr'"):
        sita.Inputs(order="grb")
