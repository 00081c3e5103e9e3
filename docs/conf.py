"""Settings of the documentation site. `make docs` builds it."""

import os
import re
from pathlib import Path

import optax
from docutils.nodes import literal_block
from sphinx.util.logging import getLogger
from sphinx.util.typing import stringify_annotation

import volvox
from volvox.sparsity.optimizers import Optimizer

project = "volvox"
author = copyright = "The volvox authors"
version = release = volvox.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
default_role = "code"
maximum_signature_line_length = 100

html_theme = "furo"
html_title = "volvox"
html_copy_source = False
html_show_sourcelink = False

myst_heading_anchors = 4
nb_execution_mode = "off"  # stored outputs are shown; tests execute the notebooks

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_attr_annotations = False  # the signature has the types
napoleon_custom_sections = [("Attributes", "params_style")]
napoleon_use_rtype = False

ROOT = Path(__file__).parent.parent
REPOSITORY = os.environ.get("READTHEDOCS_GIT_CLONE_URL", "").removesuffix(".git")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#]+)(#[^)]*)?\)")


def link_repository(app, docname, source):
    """Links files outside of docs to the repository; without its address, their path stands beside the text."""

    def linked(found):
        text, target, anchor = found[1], (ROOT / "docs" / docname).parent / found[2], found[3] or ""
        path = Path(os.path.normpath(target)).relative_to(ROOT)
        if path.parts[0] == "docs":
            return found[0]
        if not target.exists():
            getLogger(__name__).warning("%s links to %s, which does not exist", docname, path)
        return f"[{text}]({REPOSITORY}/blob/HEAD/{path}{anchor})" if REPOSITORY else f"{text} (`{path}`)"

    source[0] = LINK.sub(linked, source[0])


def mark_code(app, what, name, obj, options, lines):
    """Makes code blocks of the indented blocks in a docstring, as in Markdown."""
    marked, above = [], ""
    for before, line in zip(["", *lines], lines, strict=False):
        indent, indent_above = (len(text) - len(text.lstrip()) for text in (line, above))
        if line.strip() and not before.strip() and above and indent >= indent_above + 4:
            marked += [" " * indent_above + "::", ""]
        marked.append(line)
        above = line if line.strip() else above
    lines[:] = marked


ALIASES = {stringify_annotation(optax.Schedule, "smart"): "optax.Schedule"}
ALIASES |= {stringify_annotation(Optimizer, "smart"): "Optimizer"}


def shorten_signature(app, what, name, obj, options, signature, return_annotation):
    """Writes aliases of types and functions by their names."""
    if signature is None:
        return None
    for long, short in ALIASES.items():
        signature = signature.replace(long, short)
    return re.sub(r"<function (\w+)[^>]*>", r"\1", signature), return_annotation


def highlight_code(app, doctree):
    """Highlights the indented blocks of pages as Python, where they are Python."""
    for block in doctree.findall(literal_block):
        if block.get("language") == "none":
            block["language"] = "default"


def setup(app):
    """Connects the functions above; `mark_code` comes before napoleon, which translates the sections of docstrings."""
    app.connect("source-read", link_repository)
    app.connect("doctree-read", highlight_code)
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("autodoc-process-docstring", mark_code, priority=100)
