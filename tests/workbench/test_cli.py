from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import sita_adapters as sita
from sita_adapters.errors import InputError
from sita_workbench import cli
from sita_workbench.demo import demo
from sita_workbench.methods import open_recipe


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.make_app(), arguments)
    return result.exit_code, result.output


def run_python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command, environment = [sys.executable, "-c", code], {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)


def run_demo(first: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the demo of Keras in another process, after a statement."""
    demo = "sys.argv = ['sita', 'demo', '--backend', 'keras']; from sita_workbench.cli import main; main()"
    return run_python(f"import sys; {first}\n{demo}", **variables)


def test_help_fits_a_terminal() -> None:
    assert invoke("--version") == (0, f"sita-adapters {sita.__version__}\n")
    for command in ("inspect", "predict", "demo", "corruptions"):
        assert max(map(len, invoke(command, "--help")[1].splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--images", "100000"], "597"),
        (["--out", "picture.doc"], ".png, .pdf, .svg"),
        (["--out", "nowhere/picture.png"], "'nowhere' does not exist"),
    ],
)
def test_a_wrong_option_is_refused(arguments: list[str], words: str) -> None:
    code, output = invoke("demo", *arguments)
    assert code == 2
    assert words in re.sub(r"[\s│]+", " ", output)


def test_the_demo_prints_a_table_and_draws_a_picture() -> None:
    code, output = invoke("demo", "--images", "2")
    assert code == 0
    assert "\x1b" not in output
    assert max(map(len, output.splitlines()[1:])) <= 80
    assert all(recipe in output for recipe in demo.SHOWN)
    assert Path("sita-demo.png").read_bytes().startswith(b"\x89PNG")
    assert os.listdir() == ["sita-demo.png"]


def test_an_unknown_keras_backend_is_a_short_error() -> None:
    done = run_demo(KERAS_BACKEND="caffe")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert re.search("caffe.*set KERAS_BACKEND to one of tensorflow, jax, torch", done.stderr)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (InputError("Expected [this] and received that. " * 5), "Error: " + "Expected [this] and received that. " * 5),
        (OSError(28, "No space left on device", "out/part"), "Error: No space left on device: out/part"),
    ],
)
def test_an_expected_error_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, line: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(demo, "run_demo", fail)
    monkeypatch.setattr(sys, "argv", ["sita", "demo"])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 1
    assert capsys.readouterr().err == f"{line}\n"


@pytest.mark.parametrize("content", [b"\xff\xfe{}", b'{"priors": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"])
def test_a_recipe_file_that_cannot_be_read_is_a_sita_error(content: bytes) -> None:
    Path("recipe.json").write_bytes(content)
    with pytest.raises(sita.SitaError, match="recipe"):
        open_recipe("recipe.json", "classification")


@pytest.mark.parametrize(
    ("missing", "extras"),
    [("typer=None", "bench"), ("typer=None, torch=None, keras=None", "bench,torch"), ("keras=None", "bench,keras")],
)
def test_without_its_libraries_the_command_says_how_to_install_them(missing: str, extras: str) -> None:
    done = run_demo(f"sys.modules.update({missing})")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"pip install 'sita-adapters[{extras}]'" in done.stderr


def test_the_command_imports_nothing_heavy_and_tells_onnxruntime_to_report_nothing() -> None:
    """It sets the variable that onnxruntime reads when it is imported, unless the user has."""
    done = run_python(
        "import os, sys; os.environ.pop('ORT_DISABLE_TELEMETRY', None); import sita_workbench.cli;"
        "sita_workbench.cli.make_app(); print(os.environ['ORT_DISABLE_TELEMETRY'],"
        "*{'torch', 'keras', 'scipy', 'PIL', 'matplotlib', 'sklearn'} & set(sys.modules))"
    )
    assert (done.returncode, done.stdout) == (0, "1\n")
