"""How Sphinx builds the documentation: `make docs`."""

import sys
from pathlib import Path
from typing import Any

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "backends"), str(ROOT / "workbench")]

from sita_adapters.version import __version__  # noqa: E402  (the source beside these pages, not an installed one)

project = "sita-adapters"
author = "the sita-adapters developers"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "sita-adapters"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_show_copyright = False
smartquotes = False  # "auto" is what is typed

myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3
html_math_renderer = "mathml"

default_role = "code"  # docstrings have `names` in single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {"members": True}
add_module_names = False
python_maximum_signature_line_length = 100
nitpick_ignore_regex = [("py:.*", ".*")]  # annotations name the frameworks' classes, which have no pages here


def write_inline(writer: Any, node: Any) -> None:
    """Write an equation as MathML, which browsers draw by themselves: MathJax would be fetched from elsewhere."""
    writer.body.append(tex2mathml(node.astext()))
    raise SkipNode


def write_block(writer: Any, node: Any) -> None:
    """Write an equation on a line of its own."""
    writer.body.append(tex2mathml(node.astext(), as_block=True))
    raise SkipNode


def setup(app: Any) -> None:
    """Tell Sphinx how equations are written."""
    app.add_html_math_renderer("mathml", inline_renderers=(write_inline, None), block_renderers=(write_block, None))
