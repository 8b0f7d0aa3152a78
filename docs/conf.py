"""The site: `make docs` builds it into build/site, from packages only; an open page makes no request to the network."""

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import vitrail

project = "vitrail"
author = "the vitrail authors"
copyright = "the vitrail authors; Apache-2.0"
version = release = vitrail.__version__

extensions = ["myst_parser", "sphinx_copybutton", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["README.md", "results", "images", "tutorial/images"]  # index.rst includes README.md
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
# What scikit-learn adds to every estimator, with texts that lead into its own pages.
autodoc_default_options = {"exclude-members": "set_fit_request, set_predict_request, set_score_request"}
default_role = "literal"  # `x` in a docstring is code
python_maximum_signature_line_length = 100
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 4  # anchors as on GitHub
nitpicky = True
# In signatures, other libraries' types and ours that are not public have no page; a public name must have one.
nitpick_ignore_regex = [("py:.*", r"(?!vitrail\.\w+$).*")]

html_theme = "furo"
html_title = "vitrail"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_math_renderer = "mathml"
pygments_style = "friendly"
pygments_dark_style = "monokai"
copybutton_exclude = ".linenos, .gp, .go"


def visit_inline_math(self: Any, node: nodes.math) -> None:
    """A formula as MathML, which browsers draw themselves: no script, no font, no request."""
    self.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def visit_block_math(self: Any, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def link_to_files(app: Any, name: str, source: list[str]) -> None:
    """Markdown outside docs/ is a file to download: it is no page of the site."""
    source[0] = re.sub(r"\]\((\.\./[^)]*src/[^)]*\.md)\)", r"](path:\1)", source[0])


def link_public_names(app: Any, env: Any, node: Any, content: nodes.Element) -> nodes.Element | None:
    """In signatures, link a public name that is written with the module which defines it."""
    name = node.get("reftarget", "").rpartition(".")[2]
    if node.get("refdomain") != "py" or name not in vitrail.__all__:
        return None
    resolve = env.domains["py"].resolve_xref
    return resolve(env, node["refdoc"], app.builder, node["reftype"], f"vitrail.{name}", node, content)


def setup(app: Any) -> None:
    app.connect("source-read", link_to_files)
    app.connect("missing-reference", link_public_names)
    app.add_html_math_renderer(
        "mathml", inline_renderers=(visit_inline_math, None), block_renderers=(visit_block_math, None)
    )
