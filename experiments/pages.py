"""Writes the pages of results from their data, or checks that each is what its data give.

    python -m experiments.pages [--check] [PAGE ...]

With `--check` nothing is written; the exit status is 1 where a page differs from its data.
"""

import argparse
import sys
from importlib import import_module
from pathlib import Path

from experiments.running import RESULTS_FOLDER, write_text

# The page in experiments/results, and the module whose `page()` gives its text.
PAGES = {
    "as_published.md": "experiments.as_published",
    "architectures.md": "experiments.architectures",
    "back_ends.md": "experiments.checkmate.back_ends",
    "budget_honesty.md": "experiments.budget_honesty",
    "benchmark.md": "experiments.benchmark.results",
    "budget_curve.md": "experiments.peers.budget_curve",
    "checkmate.md": "experiments.checkmate.page",
    "chunked_parts.md": "experiments.chunked_parts",
    "fastsa.md": "experiments.fastsa.plot",
    "gpu.md": "experiments.gpu.page",
    "hiremate.md": "experiments.peers.hiremate",
    "keras_users.md": "experiments.keras_users.__main__",
    "max_batch.md": "experiments.max_batch_table",
    "moccasin.md": "experiments.moccasin.page",
    "numbers.md": "experiments.numbers.page",
    "offloading.md": "experiments.offloading",
    "partitioner.md": "experiments.peers.partitioner",
    "peak_table.md": "experiments.peak_table",
    "peers.md": "experiments.peers.rows",
    "profiling.md": "experiments.profiling.page",
    "solver_benchmark.md": "experiments.solver_benchmark.report",
    "twremat.md": "experiments.twremat.plot",
    "wild.md": "experiments.wild.trial",
    "xla.md": "experiments.xla.page",
}
NEED_TENSORFLOW = ("gpu.md", "wild.md", "xla.md")


def text_of(name: str) -> str:
    """What the data of a page give."""
    return import_module(PAGES[name]).page()


def is_current(name: str, folder: Path = RESULTS_FOLDER) -> bool:
    """Whether the page in the folder is what its data give."""
    path = folder / name
    return path.exists() and path.read_text() == text_of(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"all, or some of {', '.join(PAGES)}")
    parser.add_argument("--check", action="store_true", help="write nothing, and say which pages differ")
    options = parser.parse_args()
    for name in set(options.pages) - PAGES.keys():
        parser.error(f"there is no page {name!r}; choose of {', '.join(PAGES)}")
    names = options.pages or list(PAGES)
    if not options.check:
        for name in names:
            write_text(RESULTS_FOLDER / name, text_of(name))
        return
    stale = [name for name in names if not is_current(name)]
    for name in stale:
        print(f"{name} differs from its data; write it anew: python -m experiments.pages {name}", file=sys.stderr)
    sys.exit(bool(stale))


if __name__ == "__main__":
    main()
