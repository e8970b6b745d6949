"""The page itself, on Gradio: what one chooses on the left, what comes of it on the right."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio
import numpy as np

from sita_adapters.errors import SitaError
from sita_adapters.recipe import DEFAULT

from ..data.images import read_rgb
from ..models.digits import reads_digits
from .corrupting import Corrupt, corruptions_for
from .panel import show_error, show_look

if TYPE_CHECKING:
    from ..models.loaded import LoadedModel
    from .look import Viewer
    from .samples import Sample

_NOTHING = "none"
_FONT = ("system-ui", "Segoe UI", "Roboto", "Helvetica", "Arial", "sans-serif")


@dataclass(frozen=True, eq=False)
class Start:
    """What is chosen when the page opens."""

    sample: int
    corruption: str
    severity: int
    recipe: str


def choose_start(loaded: LoadedModel, recipe: str | None) -> Start:
    """Return a start at which there is something to see: adapting corrects the digit reader's answer."""
    name = "" if loaded.file is not None else recipe or DEFAULT
    if reads_digits(loaded):
        return Start(5, "fog", 3, name)
    return Start(0, "gaussian noise", 3, name)


class Page:
    """Answers what is chosen on the page."""

    def __init__(self, viewer: Viewer, samples: Sequence[Sample], names: Sequence[str], start: Start) -> None:
        self.viewer, self.samples, self.names, self.start = viewer, samples, names, start
        self.corruptions: Mapping[str, Corrupt] = corruptions_for(viewer.loaded)

    def check(self) -> None:
        """Look at the first image, so that a model that cannot be shown is reported before the page opens."""
        self.viewer.look(self.samples[self.start.sample].pixels, self.start.recipe)

    def show(self, sample: int, dropped: str | None, corruption: str, severity: float, recipe: str | None) -> str:
        """Return the right side of the page; what went wrong is a sentence there."""
        try:
            return self._show(sample, dropped, corruption, round(severity), recipe or "")
        except SitaError as error:
            return show_error(str(error))
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            return show_error(f"{self.viewer.loaded.spec} failed on this image: {reason}")

    def _show(self, sample: int, dropped: str | None, corruption: str, severity: int, recipe: str) -> str:
        if dropped is None:
            clean, label = self.samples[sample].pixels, self.samples[sample].label
        else:
            clean, label = self._open(Path(dropped)), None
        if corruption == _NOTHING or severity == 0:
            return show_look(self.viewer.look(clean, recipe), self.names, label)
        pixels = self.corruptions[corruption](clean, severity)
        return show_look(self.viewer.look(pixels, recipe, clean), self.names, label)

    def _open(self, path: Path) -> np.ndarray:
        return self.viewer.loaded.fit(read_rgb(path.read_bytes(), self.viewer.loaded.max_pixels))


def build(page: Page) -> gradio.Blocks:
    """Return the page's layout, and what happens when something is chosen."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    blocks = gradio.Blocks(title="sita", analytics_enabled=False, fill_width=True)
    with blocks:
        gradio.HTML(_head(page.viewer.loaded), elem_id="title")
        with gradio.Row(equal_height=False):
            with gradio.Column(scale=2, min_width=270):
                gallery, dropped = _add_images(page)
                settings = _add_settings(page)
            with gradio.Column(scale=7, min_width=320):
                panel = gradio.HTML(elem_id="panel")
        chosen = gradio.State(page.start.sample)
        gallery.select(_choose, None, [chosen, dropped], show_progress="hidden")
        inputs: list[Any] = [chosen, dropped, *settings]
        gradio.on(
            [blocks.load, *(each.change for each in inputs)],
            page.show,
            inputs,
            panel,
            show_progress="minimal",
            trigger_mode="always_last",  # while a slider is dragged, only its last place matters
            concurrency_limit=1,
        )
    return blocks


def _add_images(page: Page) -> tuple[gradio.Gallery, gradio.File]:
    """Add what an image is chosen with."""
    gallery = gradio.Gallery(
        [(each.pixels, each.caption) for each in page.samples],
        label="Pick a sample",
        elem_id="samples",
        columns=5 if len(page.samples) > 2 else 2,
        format="png",
        object_fit="cover",
        allow_preview=False,
        selected_index=page.start.sample,
        buttons=[],
        interactive=False,
    )
    # Not an Image, which would decode it, and tell what is wrong with it in its own words.
    dropped = gradio.File(label="or drop an image of your own", file_types=["image"], height=62, elem_id="dropped")
    return gallery, dropped


def _add_settings(page: Page) -> tuple[gradio.Dropdown, gradio.Slider, gradio.Dropdown]:
    """Add what is done to the image: the corruption, its severity, and the recipe."""
    start = page.start
    corruption = gradio.Dropdown(
        [_NOTHING, *page.corruptions], value=start.corruption, label="Corrupt it by", elem_id="corruption"
    )
    severity = gradio.Slider(
        0, 5, value=start.severity, step=1, label="How much (0: not at all)", elem_id="severity", buttons=[]
    )
    recipe = gradio.Dropdown(
        [(f"{name} (the default)" if name == DEFAULT else name, name) for name in page.viewer.recipes],
        value=start.recipe or None,
        label="Adapt it by (recipe)",
        visible=bool(page.viewer.recipes),
        elem_id="recipe",
    )
    return corruption, severity, recipe


def _choose(picked: gradio.SelectData) -> tuple[int, None]:
    """Take a sample in place of whatever was dropped."""
    return int(picked.index), None


def _head(loaded: LoadedModel) -> str:
    trained = ", a small network that was trained on clean handwritten digits" if reads_digits(loaded) else ""
    return (
        "<h1>Does adapting to this one image help?</h1>"
        f"<p>{escape(Path(loaded.spec).name)}{trained}. Pick an image, corrupt it, and compare.</p>"
    )


def launch(blocks: gradio.Blocks, port: int, browser: bool) -> str:
    """Serve the page on this machine, open a browser where one is wanted, and return the address at once."""
    # Gradio asks for its own page, which a proxy would not find.
    os.environ["NO_PROXY"] = ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1")))
    theme = gradio.themes.Base(font=_FONT, font_mono=("ui-monospace", "Consolas", "monospace"), text_size="sm")
    try:
        _, address, _ = blocks.launch(
            server_name="127.0.0.1",
            server_port=port,
            inbrowser=browser,
            share=False,
            quiet=True,
            prevent_thread_lock=True,
            ssr_mode=False,
            footer_links=[],
            theme=theme,
            css_paths=Path(__file__).with_name("page.css"),
        )
    except OSError as error:
        raise SitaError(f"Port {port} cannot be listened on; it may be in use. Try: another --port.") from error
    return str(address)
