"""The library as a package: what it imports, what its errors are, and that tests meet the frameworks themselves."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

import sita_adapters as sita
from sita_adapters import errors
from sita_adapters.errors import InputError


def printed_by(code: str) -> str:
    """What a program prints in a process of its own."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_every_error_is_a_sita_error_and_the_builtin_one_would_catch() -> None:
    found = [error for name, error in vars(errors).items() if name.endswith("Error") and name != "SitaError"]
    assert len(found) == 7
    for error in found:
        assert issubclass(error, sita.SitaError)
        assert issubclass(error, ValueError | TypeError | RuntimeError | ImportError)


def test_the_public_names_are_few_and_there() -> None:
    assert len(sita.__all__) == 15
    assert all(hasattr(sita, name) for name in sita.__all__)
    assert dir(sita) == sorted(sita.__all__)


@pytest.mark.parametrize("module", ["sita_adapters", "sita_adapters.compare"])
def test_importing_the_library_imports_no_framework(module: str) -> None:
    frameworks = "('torch', 'keras', 'tensorflow', 'jax', 'scipy', 'typer')"
    assert printed_by(f"import sys, {module}\nprint([name for name in {frameworks} if name in sys.modules])") == "[]\n"


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("torch=None, keras=None", "no such framework is installed. Try: pip install 'sita-adapters[torch]'"),
        ("keras=None", "Expected a torch model; received"),
    ],
)
def test_only_frameworks_that_are_installed_are_offered(missing: str, message: str) -> None:
    code = (
        f"import sys; sys.modules.update({missing})\n"
        "import sita_adapters as sita\n"
        "try:\n    sita.adapt(object())\nexcept sita.SitaError as error:\n    print(error)"
    )
    assert message in printed_by(code)


@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_no_folder_of_tests_stands_in_for_a_framework(framework: str) -> None:
    found = importlib.util.find_spec(framework)
    assert found is None or found.origin is not None, f"{framework} is a folder: {found.submodule_search_locations}"


@pytest.mark.parametrize("wrong", [{"std": (0.0,)}, {"std": float("nan")}, {"mean": ()}, {"white": -1}])
def test_encodings_that_make_no_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match="std and white above 0"):
        sita.Inputs(**wrong)


def test_an_encoding_has_an_order_of_its_channels() -> None:
    assert sita.Inputs(mean=0.5, std=0.5).mean == (0.5,)
    with pytest.raises(InputError, match="'rgb' or 'bgr'"):
        sita.Inputs(order="grb")
