"""The page of MOCCASIN's tables, figures and choices.

python -m experiments.moccasin.page
"""

from typing import Any

from tabulate import tabulate

from experiments.moccasin.points import PUBLISHED
from experiments.running import RESULTS_FOLDER, read_points, write_text

PAGE = RESULTS_FOLDER / "moccasin.md"
RESULTS = RESULTS_FOLDER / "moccasin.jsonl"
# Title, part, command.
SECTIONS = (
    ("Tables 2 and 3", "table2", "table2 --threads 1 --time-limit 600"),
    ("Figure 1: progress against Checkmate's MILP", "figure1", "figures --time-limit 20 --figure 1"),
    ("Figure 5: progress at four budgets", "figure5", "figures --time-limit 20 --figure 5"),
    ("Figure 6: time by size", "figure6", "figures --time-limit 20 --figure 6"),
    ("As published, from nothing: precedence", "nothing", "choices --time-limit 60 --study nothing"),
    ("What the search starts from", "start", "choices --time-limit 25 --study start"),
    ("How precedence is modelled, whole model", "precedence", "choices --time-limit 20 --study precedence"),
    ("Neighbourhoods or the whole model", "strategy", "choices --time-limit 30 --study strategy"),
    ("How often a node may be computed, C_v, whole model", "limit", "choices --time-limit 25 --study limit"),
)
_ORDERS = """## Section 1: 50 random topological orders

`python -m experiments.moccasin.orders`

Peaks without rematerialization, in percent of that of the input order. The paper found no variation on the graphs of
Checkmate, which are those whose names end in "train".

"""
_FIGURE_7 = """## Figure 7: the structure of two graphs

`python -m experiments.moccasin.figures --figure 7`

The layer graph of an FCN8 in training, and a random layered graph of 100 nodes; edges go from left to right.

![Figure 7: the structure of two graphs](moccasin/figure7.png)
"""
_HEAD = """# MOCCASIN: tables, figures and choices

Written by `python -m experiments.moccasin.page` from `moccasin.jsonl`. The input order is kept. Overhead and its proved
lower bound are in percent of the baseline cost; seconds are those until the best schedule. L50 to L1000 are random
layered graphs of so many nodes, which stand for graphs that were not published; RW1 to RW4 are such graphs with as many
nodes and about as many edges as the paper's real-world graphs, whose published figures stand beside.
"""
_HEADERS = ("graph", "budget, %", "solver", "options", "limit, s", "overhead", "bound", "status", "best after, s")


def page() -> str:
    """All parts in markdown."""
    orders = orders_table(read_points(RESULTS, "orders"))
    return "\n".join([_HEAD, *(_section(*section) for section in SECTIONS), f"{_ORDERS}{orders}\n", _FIGURE_7])


def _section(title: str, part: str, command: str) -> str:
    entries = read_points(RESULTS, part)
    entries.sort(key=lambda entry: (entry["result"]["nodes"], entry["point"]["graph"], -entry["point"]["percent"]))
    headers = (*_HEADERS, "published overhead", "in s") if part == "table2" else _HEADERS
    table = tabulate([_cells(entry, part) for entry in entries], headers, "github", missingval="none")
    picture = f"\n![{title}](moccasin/{part}.png)\n" if part.startswith("figure") else ""
    return f"## {title}\n\n`python -m experiments.moccasin.{command}`\n\n{table}\n{picture}"


def _cells(entry: dict[str, Any], part: str) -> tuple[Any, ...]:
    point, result = entry["point"], entry["result"]
    options = ", ".join(f"{name} {value}" for name, value in point["options"].items())
    cells = (point["graph"], point["percent"], point["solver"], options, point["time_limit_s"])
    cells += (result["overhead"], result["bound"], result["status"].lower().replace("_", " "), result["time_to_best_s"])
    return cells + PUBLISHED[point["graph"], point["percent"]] if part == "table2" else cells


def orders_table(entries: list[dict[str, Any]]) -> str:
    rows = []
    for entry in sorted(entries, key=lambda entry: (entry["result"]["nodes"], entry["point"]["graph"])):
        result = entry["result"]
        least, most = (100 * result[end] / result["input_bytes"] for end in ("least_bytes", "most_bytes"))
        figures = (result["nodes"], result["edges"], result["orders"], result["peaks"])
        rows.append((entry["point"]["graph"], *figures, f"{least:.1f}", f"{most:.1f}"))
    headers = ("graph", "nodes", "edges", "different orders", "different peaks", "least peak, %", "highest, %")
    return tabulate(rows, headers, "github")


def write_page() -> None:
    write_text(PAGE, page())


if __name__ == "__main__":
    write_page()
