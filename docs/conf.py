"""Sphinx: the site of build/docs. `make docs` builds it, warnings are errors."""

import sys
from pathlib import Path

from docutils.nodes import SkipNode
from latex2mathml.converter import convert

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import generate  # noqa: E402
import uvd  # noqa: E402

generate.write(HERE / "generated")

project, author, release = "uvd", "the uvd authors", uvd.__version__
copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["archive", "README.md"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types of other libraries, which are not on this site

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "attrs_inline"]
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_default_options = {"exclude-members": "__init__, __new__"}
default_role = "code"

html_math_renderer = "mathml"  # which browsers draw by themselves, without a network
html_theme = "furo"
html_title = f"uvd {release}"
html_static_path = ["static"]
html_css_files = ["uvd.css"]
html_show_copyright = False


def inline_math(translator, node):
    translator.body.append(convert(node.astext()))
    raise SkipNode


def block_math(translator, node):
    translator.body.append(f'<div class="equation">{convert(node.astext(), display="block")}</div>')
    raise SkipNode


def code_blocks(app, what, name, obj, options, lines):
    """An indented block in a docstring is code."""
    for i in range(len(lines) - 1, 0, -1):
        if lines[i].startswith("    ") and not lines[i - 1].strip():
            lines[i - 1 : i] = ["", "::", ""]


def setup(app):
    app.connect("autodoc-process-docstring", code_blocks)
    app.add_html_math_renderer("mathml", (inline_math, None), (block_math, None))
