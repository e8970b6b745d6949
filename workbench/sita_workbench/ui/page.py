"""The page, on Gradio: inputs on the left, results on the right."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio

from sita_adapters.errors import SitaError
from sita_adapters.recipe import DEFAULT

from ..data.images import read_rgb
from ..models.digits import SPECS
from .panel import show_error, show_look
from .samples import corruptions_for

if TYPE_CHECKING:
    from .look import Viewer
    from .samples import Sample

_NOTHING = "none"
_FONT = ("system-ui", "Segoe UI", "Roboto", "Helvetica", "Arial", "sans-serif")


class Page:
    """Shows the results for the chosen inputs. It opens on a digit that adaptation corrects, or on the first sample."""

    def __init__(self, viewer: Viewer, samples: Sequence[Sample], names: Sequence[str], recipe: str) -> None:
        self.viewer, self.samples, self.names, self.recipe = viewer, samples, names, recipe
        self.corruptions = corruptions_for(viewer.loaded)
        digits = viewer.loaded.spec in SPECS and len(samples) > 5
        self.sample, self.corruption = (5, "fog") if digits else (0, "gaussian noise")
        # A model that cannot be shown is reported before the page opens.
        viewer.look(samples[self.sample].pixels, recipe)

    def show(self, sample: int, dropped: str | None, corruption: str, severity: float, recipe: str) -> str:
        """Return the right side of the page, or an error message to show there."""
        loaded = self.viewer.loaded
        try:
            clean, label = self.samples[sample].pixels, self.samples[sample].label
            if dropped is not None:
                clean, label = loaded.fit(read_rgb(Path(dropped).read_bytes(), loaded.max_pixels)), None
            if corruption == _NOTHING or not round(severity):
                return show_look(self.viewer.look(clean, recipe), self.names, label)
            pixels = self.corruptions[corruption](clean, severity=round(severity))
            return show_look(self.viewer.look(pixels, recipe, clean), self.names, label)
        except SitaError as error:
            return show_error(str(error))
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            return show_error(f"{loaded.spec} failed on this image: {reason}")


def build(page: Page) -> gradio.Blocks:
    """Return the page's layout, and what happens when something is chosen."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    spec = page.viewer.loaded.spec
    trained = ", a small network that was trained on clean handwritten digits" if spec in SPECS else ""
    title = f"<p>{escape(Path(spec).name)}{trained}. Pick an image, corrupt it, and compare.</p>"
    blocks = gradio.Blocks(title="sita", analytics_enabled=False, fill_width=True)
    with blocks:
        gradio.HTML(f"<h1>Does adapting to this one image help?</h1>{title}", elem_id="title")
        with gradio.Row(equal_height=False):
            with gradio.Column(scale=2, min_width=270):
                inputs = _add_inputs(page)
            with gradio.Column(scale=7, min_width=320):
                panel = gradio.HTML(elem_id="panel")
        gradio.on(
            [blocks.load, *(each.change for each in inputs)],
            page.show,
            inputs,
            panel,
            show_progress="minimal",
            trigger_mode="always_last",  # while a slider is dragged, only its last position matters
            concurrency_limit=1,
        )
    return blocks


def _add_inputs(page: Page) -> list[Any]:
    """Add the inputs for the image, the corruption, its severity and the recipe, in the order of `Page.show`."""
    gallery = gradio.Gallery(
        [(each.pixels, each.caption) for each in page.samples],
        label="Pick a sample",
        elem_id="samples",
        columns=5 if len(page.samples) > 2 else 2,
        format="png",
        object_fit="cover",
        allow_preview=False,
        selected_index=page.sample,
        buttons=[],
        interactive=False,
    )
    # Not an Image, which would decode it and report errors in its own words.
    dropped = gradio.File(label="or drop an image of your own", file_types=["image"], height=62, elem_id="dropped")
    chosen = gradio.State(page.sample)
    gallery.select(_choose, None, [chosen, dropped], show_progress="hidden")
    kinds = [_NOTHING, *page.corruptions]
    corruption = gradio.Dropdown(kinds, value=page.corruption, label="Corrupt it by", elem_id="corruption")
    label = "How much (0: not at all)"
    severity = gradio.Slider(0, 5, value=3, step=1, label=label, elem_id="severity", buttons=[])
    recipes = [(f"{name} (the default)" if name == DEFAULT else name, name) for name in page.viewer.recipes]
    recipe = gradio.Dropdown(recipes, value=page.recipe, label="Adapt it by (recipe)", elem_id="recipe")
    return [chosen, dropped, corruption, severity, recipe]


def _choose(picked: gradio.SelectData) -> tuple[int, None]:
    """Use a sample instead of a dropped image."""
    return int(picked.index), None


def launch(blocks: gradio.Blocks, port: int, browser: bool) -> str:
    """Serve the page on this machine, open a browser if one is wanted, and return the address at once."""
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
        raise SitaError(f"The server cannot listen on port {port}; it may be in use. Try: another --port.") from error
    return str(address)
