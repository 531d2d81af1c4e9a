"""Reads the files that pages are made of; they lie beside this file."""

from importlib import resources


def read_asset(name: str) -> str:
    """Reads a file of this folder.

    >>> read_asset("page.html").startswith("<!DOCTYPE html>")
    True
    """
    return resources.files("checkmate_tf.reports").joinpath(name).read_text(encoding="utf-8")
