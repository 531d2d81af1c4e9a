"""Builds the documentation with Sphinx, and runs its notebooks: `make docs`."""

import os
import sys
from importlib import metadata
from pathlib import Path

from sphinx.application import Sphinx

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))

import generate  # noqa: E402 - it lies beside this file

project = "checkmate_tf"
author = "the checkmate_tf authors"
release = metadata.version("checkmate_tf")
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "jupyter_execute"]
html_theme = "furo"
html_title = f"checkmate_tf {release}"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["pages.css"]
myst_heading_anchors = 3
# Notebooks run anew in each build, each in a folder of its own. What they print on standard error is TensorFlow's log.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 600  # seconds for a cell, on a machine that does other work too
nb_output_stderr = "remove"
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "1"}
# Docstrings mark code with single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
napoleon_custom_sections = [("Attributes", "params_style")]


def setup(app: Sphinx) -> None:
    """Writes the pages that come from other files, and makes links to those files lead to the pages."""
    generate.write_pages(FOLDER / "generated")
    app.connect("source-read", point_to_pages)


def point_to_pages(app: Sphinx, name: str, source: list[str]) -> None:
    source[0] = generate.point_to_pages(source[0], (FOLDER / name).parent)
