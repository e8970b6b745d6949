"""Build the wheel and the sdist, check them, and try the wheel in an empty environment, where the checkout is not.

    make dist

Leaves both in dist/.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("sita_adapters", "sita_torch", "sita_keras", "sita_workbench")
CONTRACT = ("-m", "not slow", "tests/contract", "--ignore", "tests/contract/test_networks.py")
"""The promises; without torchvision's networks, which no extra of ours brings."""
DEMO = ("demo", "--images", "10")
PYTEST_INI = """
[pytest]
pythonpath = tests/shared
addopts = --strict-markers --import-mode importlib -p no:cacheprovider
markers =
    real: needs real data
    slow: only in make test-all
    xdist_group: keeps tests in one process
"""
WHERE = "import sita_adapters as a, sita_torch as t, sita_workbench as w; print(a.__file__, t.__file__, w.__file__)"


def main() -> None:
    """Build, check, install, try."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        checkout = copy_checkout(scratch / "checkout")
        run(sys.executable, "-m", "build", "--outdir", dist, checkout)  # the wheel is built from the sdist
        run(sys.executable, "-m", "build", "--wheel", "--outdir", scratch / "direct", checkout)
        run(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir())
        (wheel,), (direct,) = dist.glob("*.whl"), (scratch / "direct").glob("*.whl")
        check_contents(wheel, direct, checkout)
        try_wheel(wheel, scratch)
    print("dist/:", *(path.name for path in sorted(dist.iterdir())))


def run(*command: object, **settings: object) -> str:
    """Run a command; where it fails, show what it printed and stop."""
    words = [str(word) for word in command]
    done = subprocess.run(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **settings)
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(words)} failed")
    return done.stdout


def copy_checkout(target: Path) -> Path:
    """Copy what git knows, so that neither stray files nor remains of an earlier build get into a wheel."""
    for name in run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT).splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    return target


def read_wheel(path: Path) -> dict[str, bytes]:
    """Return the contents of every file but the list of them."""
    with zipfile.ZipFile(path) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/RECORD")}


def check_contents(wheel: Path, direct: Path, checkout: Path) -> None:
    """Check that the wheel holds the packages whole, and nothing beside; and that the sdist lacks nothing of them."""
    files = read_wheel(wheel)
    if files != read_wheel(direct):
        sys.exit("The wheel that the sdist makes differs from the one that the checkout makes.")
    folders = (checkout / "sita_adapters", *(checkout / "backends").iterdir(), checkout / "workbench/sita_workbench")
    expected = {
        f"{folder.name}/{path.relative_to(folder)}"
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file()
    }
    packaged = {name for name in files if not name.partition("/")[0].endswith(".dist-info")}
    if packaged != expected:
        sys.exit(f"In the wheel and in the checkout alone: {sorted(packaged ^ expected)}")
    if missing := {f"{name}/py.typed" for name in PACKAGES} - packaged:
        sys.exit(f"Not in the wheel: {missing}")
    if not any(name.endswith("/licenses/LICENSE") for name in files):
        sys.exit("The wheel has no licence.")
    print(f"{wheel.name}: {len(files)} files, {wheel.stat().st_size / 1e3:.0f} kB")


def try_wheel(wheel: Path, scratch: Path) -> None:
    """Install the wheel into an empty environment, and run the promises and the demo with it."""
    environment, place = scratch / "venv", scratch / "elsewhere"
    venv.create(environment, with_pip=True)
    python, constraints = environment / "bin/python", ROOT / "constraints.txt"
    index = ["--extra-index-url", url] if (url := os.environ.get("TORCH_INDEX")) else []
    needed = (f"{wheel}[torch,bench]", "pytest", "pytest-timeout", "hypothesis")
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *index, "-c", constraints, *needed)
    shutil.copytree(ROOT / "tests", place / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    (place / "pytest.ini").write_text(PYTEST_INI)
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "KERAS_BACKEND")}
    settings = {"cwd": place, "env": {**variables, "XDG_CACHE_HOME": str(scratch / "cache")}}
    modules = run(python, "-c", WHERE, **settings).split()
    if not all("site-packages" in path for path in modules):
        sys.exit(f"Expected the wheel's modules; received {modules}")
    print("tried:", *modules, sep="\n  ")
    print(run(python, "-m", "pytest", "-q", *CONTRACT, **settings).splitlines()[-1])
    print(run(environment / "bin/sita", *DEMO, **settings))


if __name__ == "__main__":
    main()
