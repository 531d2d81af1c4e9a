"""Reads the files that pages are made of, which lie beside this file, and escapes the text that goes into them."""

import html
from importlib import resources

from checkmate_tf.errors import make_printable


def read_asset(name: str) -> str:
    """Reads a file of this folder.

    >>> read_asset("page.html").startswith("<!DOCTYPE html>")
    True
    """
    return resources.files("checkmate_tf.reports").joinpath(name).read_text(encoding="utf-8")


def escape_html(text: str) -> str:
    """Writes text, which may be names out of anyone's file, so that a page shows it and does nothing else with it.

    >>> escape_html("<b>")
    '&lt;b&gt;'
    """
    return html.escape(make_printable(text))
