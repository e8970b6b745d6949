"""README and documentation: every Python block runs, every command is one that exists, every link leads somewhere."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import documented
import pytest
import timm
import torch
import torchvision
import typer
from documented import PAGES, ROOT

from sita_workbench.cli import make_app

BLOCKS = {page: documented.blocks_of(page) for page in PAGES}
LANGUAGES = {"python", "console", "bibtex", "text", "run", "toctree", "include", "literalinclude", "eval-rst"}
STUMBLING = re.compile(
    r"(?i)puts? out|put out|so that|\bplaces\b|by itself|goes on|went on|made-up|held against|ordinary images"
    r"|in passing|Remedy:|departing|untold"
)
BUILDERS = [
    (timm, "create_model", {"pretrained": False}),
    (torchvision.models, "resnet18", {"weights": None}),
    (torchvision.models.segmentation, "lraspp_mobilenet_v3_large", {"weights": None, "weights_backbone": None}),
]


@pytest.fixture(autouse=True)
def _without_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, instead in BUILDERS:
        build = documented.seeded(getattr(module, name), lambda: torch.manual_seed(0), **instead)
        monkeypatch.setattr(module, name, build)
    documented.forbid_network(monkeypatch)


@pytest.mark.filterwarnings("ignore:No recipe keeps")  # `calibrate`, of a network with random weights
@pytest.mark.parametrize(
    "page", [page for page in PAGES if documented.code_of(page, "torch")], ids=lambda page: page.stem
)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documented.run_page(page, "torch", tmp_path, monkeypatch)


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    for page, blocks in BLOCKS.items():
        for block in blocks:
            assert block.language.strip("{}").split("}")[0] in LANGUAGES, f"{page.name}:{block.line}"


def commands() -> Iterator[tuple[str, list[str]]]:
    for page, blocks in BLOCKS.items():
        for block in blocks:
            if block.language == "console":
                for line in block.text.replace("\\\n", " ").splitlines():
                    words = shlex.split(line, comments=True)
                    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                        words = words[1:]
                    if words:
                        yield f"{page.name}: {line}", [Path(words[0]).name, *words[1:]]


COMMANDS = dict(commands())


def of(*names: str) -> Any:
    chosen = {line: words for line, words in COMMANDS.items() if words[0] in names}
    assert chosen
    return pytest.mark.parametrize("words", chosen.values(), ids=list(chosen))


def test_every_command_is_known() -> None:
    known = {"sita", "make", "python", "python3", "pip", "pytest", "git", "cd", "source", "curl"}
    assert {words[0] for words in COMMANDS.values()} <= known


@of("sita")
def test_the_sita_command_takes_it(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    images, others = ("cat.jpg", "cat.png", "foggy.jpg"), ("list.txt", "imagenet.txt", "model.onnx")
    for name in (*images, *others, "resnet20.safetensors", "recipe.json", "results.json"):
        Path(name).touch()
    command = typer.main.get_command(make_app())
    context = command.make_context("sita", words[1:], resilient_parsing=False)
    name, subcommand, rest = command.resolve_command(context, words[1:])
    subcommand.make_context(name, rest, parent=context)


@of("make")
def test_make_has_the_target(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in words[1:]:
        name = word.partition("=")[0]
        assert re.search(rf"^{name}\b.*[:=]|\$\({name}\)", makefile, re.MULTILINE), word


@of("pip", "python", "python3", "pytest")
def test_files_and_extras_are_there(words: list[str]) -> None:
    extras = set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE))
    for word in words[1:]:
        assert not word.startswith("sita-adapters"), "it isn't on PyPI yet"
        if wanted := re.fullmatch(r"\.\[(.+)\]", word):
            assert set(wanted[1].split(",")) <= extras
        elif "://" not in word and re.search(r"\.(py|txt)(::\S+)?$|^\./|/", word) and not word.startswith("DATA"):
            assert (ROOT / word.partition("::")[0]).exists() or "venv" in word, word


def test_few_phrases_make_readers_stumble() -> None:
    files = [path for name in ("sita_adapters", "backends", "workbench") for path in (ROOT / name).rglob("*.py")]
    files += [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
    found = [f"{path}: {each}" for path in files for each in STUMBLING.findall(path.read_text(encoding="utf-8"))]
    assert len(files) > 50
    assert len(found) <= 5, found


def test_the_functions_that_the_architecture_names_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("| --- | --- | --- | --- |\n")[2].partition("\n\n")[0]
    folders, checked = ("backends/sita_torch", "sita_adapters", "backends/sita_keras"), 0
    for line in table.splitlines():
        for folder, cell in zip(folders, line.strip("| ").split("|")[1:], strict=False):
            for module, *names in (name.split(".") for name in re.findall(r"`(\w+\.[\w.]+)`", cell)):
                own = folder if (ROOT / folder / f"{module}.py").exists() else "sita_adapters"
                code = (ROOT / own / f"{module}.py").read_text(encoding="utf-8")
                assert all(re.search(rf"(def|class) {name}\b", code) for name in names), (module, names)
                checked += 1
    assert checked > 20


def slugs(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    included = re.findall(r"^```\{include\} (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    text = "\n".join(path.read_text(encoding="utf-8") for path in (page, *(page.parent / name for name in included)))
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = page if not path else (page.parent / path).resolve()
        assert linked.exists(), target
        if anchor:
            assert anchor in slugs(linked), target
