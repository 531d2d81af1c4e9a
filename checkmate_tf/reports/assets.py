"""Reads the files for pages, which lie beside this file, and escapes the text in pages."""

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
    """Escapes text for a page. A name from a file could otherwise be markup or a script.

    >>> escape_html("<b>")
    '&lt;b&gt;'
    """
    return html.escape(make_printable(text))
