"""Writes the pages of the documentation that come from other files: results, notes of the repository, commands.

Links in Markdown are those of the repository, so that they work where its files are read there. Here a link to a file
that has a page leads to the page.
"""

import argparse
import os
import re
import shutil
from importlib import import_module
from pathlib import Path

from checkmate_tf.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "experiments" / "results"
# Files of the repository, and the pages that show them.
PAGES = {
    ROOT / "README.md": "index",
    ROOT / "CONTRIBUTING.md": "generated/contributing",
    ROOT / "CHANGELOG.md": "generated/changelog",
    ROOT / "experiments" / "README.md": "generated/experiments",
    ROOT / "experiments" / "gpu" / "README.md": "generated/gpu_runs",
    **{path: f"generated/results/{path.stem}" for path in sorted(RESULTS.glob("*.md"))},
}
_COLUMNS = 100
_LINK = re.compile(r"\]\((?!https?:|#|/)([^()\s#]+)(#[^()\s]*)?\)")


def write_pages(folder: Path) -> None:
    """Writes all generated pages anew, with the pictures that they show."""
    shutil.rmtree(folder, ignore_errors=True)
    for source, page in PAGES.items():
        if page.startswith("generated/"):
            target = folder.parent / f"{page}.md"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(point_to_pages(source.read_text(encoding="utf-8"), source.parent), encoding="utf-8")
    for picture in RESULTS.glob("*/*.png"):
        target = folder / "results" / picture.relative_to(RESULTS)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(picture, target)
    (folder / "commands.md").write_text(describe_commands(), encoding="utf-8")


def point_to_pages(text: str, folder: Path) -> str:
    """Makes the links of a text in `folder` lead to pages, and names the files of the repository that have none."""

    def point(found: re.Match[str]) -> str:
        path = Path(os.path.normpath(folder / found[1]))
        docs = ROOT / "docs"
        if path in PAGES:
            return f"](/{PAGES[path]}.md{found[2] or ''})"
        if path.suffix == ".md" and path.is_relative_to(docs) and path.exists():
            return f"](/{path.relative_to(docs).as_posix()}{found[2] or ''})"
        return found[0]

    return _LINK.sub(point, text)


def describe_commands() -> str:
    """Returns a page with the help of every subcommand, as its parser prints it."""
    os.environ["COLUMNS"] = str(_COLUMNS)
    parts = ["# Commands", "", "What `checkmate-tf COMMAND --help` prints.", ""]
    for name, summary in COMMANDS.items():
        parser = argparse.ArgumentParser(prog=f"checkmate-tf {name}", description=f"{summary[0].upper()}{summary[1:]}.")
        import_module(f"checkmate_tf.commands.{name.replace('-', '_')}").add_arguments(parser)
        parts += [f"## {name}", "", "```text", parser.format_help().rstrip(), "```", ""]
    return "\n".join(parts)
