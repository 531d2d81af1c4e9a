"""The page of MOCCASIN's tables, figures and choices.

python -m experiments.moccasin.page
"""

from typing import Any

from tabulate import tabulate

from experiments.moccasin.points import PUBLISHED
from experiments.running import RESULTS_FOLDER, read_points, write_text

Table = tuple[list[list[Any]], list[str]]
"""Rows and headers."""

PAGE = RESULTS_FOLDER / "moccasin.md"
RESULTS = RESULTS_FOLDER / "moccasin.jsonl"
# Title, part, command.
SECTIONS = (
    ("Tables 2 and 3", "table2", "table2 --threads 1 --time-limit 600"),
    ("Table 2 in free order", "table2_free", "table2 --order free --threads 1 --time-limit 20"),
    ("Figure 1: progress against Checkmate's MILP", "figure1", "figures --time-limit 20 --figure 1"),
    ("Figure 5: progress at four budgets", "figure5", "figures --time-limit 20 --figure 5"),
    ("Figure 6: time by size", "figure6", "figures --time-limit 20 --figure 6"),
    ("As published, from nothing: precedence", "nothing", "choices --time-limit 60 --study nothing"),
    ("The start of the search", "start", "choices --time-limit 25 --study start"),
    ("The model of precedence, in the whole model", "precedence", "choices --time-limit 20 --study precedence"),
    ("Neighbourhoods or the whole model", "strategy", "choices --time-limit 30 --study strategy"),
    ("The limit of computations of a node, C_v, in the whole model", "limit", "choices --time-limit 25 --study limit"),
)
_SIZES = """## Table 1: variables and constraints

`python -m experiments.moccasin.sizes`

The counts are those of the built models, for a budget of 80 %, beside the terms of the paper's Table 1: n² + nm for
Checkmate, and Cn Booleans, Cn integers and Cm constraints for MOCCASIN, with C = 2. Integers are starts and ends, and
the lengths of intervals that may be inactive. In stages, the first start of every node is fixed. Checkmate's U is
continuous, so it is not among its Booleans. Constraints of MOCCASIN need not be linear. Checkmate's program of G4 was
not built: it would have 6.9 million Booleans, and this experiment builds at most 2 million.

"""
_INFERENCE = """## Section 1.1: graphs of inference

`python -m experiments.moccasin.inference --time-limit {limit:g}`

These are the least peaks found, in percent of the input order's: with another order and no rematerialization, with the
proved lower bound, and with rematerialization in the input order, with its overhead. The least step is a lower bound on
both. Graphs whose names end in "test" are forward passes of Checkmate's networks. Each search had {limit:g} s.

"""
_ORDERS = """## Section 1: 50 random topological orders

`python -m experiments.moccasin.orders`

These are peaks without rematerialization, in percent of that of the input order. The paper found no variation on the
graphs of Checkmate, whose names end in "train".

"""
_NOTES = {
    "table2_free": "Each row also shows the published overhead in the input order. The budget is a share of that "
    "order's peak, so another order alone may stay within it. A bound of 0 means that none was proved.",
    "figure5": "The paper ran 30 minutes for a curve and an hour for G4, on 16 cores; we ran 20 s on two cores. L500 "
    "and L1000 are random layered graphs like G3 and G4. Both methods begin with an annealed schedule, unlike "
    "the paper's. If a row of Checkmate's MILP says none, its program was too large to be solved in this "
    "time, and the annealed schedule is its result. Other work ran on the machine while its rows, G3's and G4's were "
    "measured, and its runs on G3 took 25 to 44 s.",
}
_FIGURE_7 = """## Figure 7: the structure of two graphs

`python -m experiments.moccasin.figures --figure 7`

The picture shows the layer graph of an FCN8 in training, and a random layered graph of 100 nodes. Edges go from left to
right.

![Figure 7: the structure of two graphs](moccasin/figure7.png)
"""
_HEAD = """# MOCCASIN: tables, figures and choices

Written by `python -m experiments.moccasin.page` from `moccasin.jsonl`. The input order is kept. Overhead and its proved
lower bound are in percent of the baseline cost, and seconds are those until the best schedule. L50 to L1000 are random
layered graphs with so many nodes, which represent graphs that were not published. RW1 to RW4 are such graphs with as
many nodes and about as many edges as the paper's real-world graphs, whose published figures are in the same row.
"""
_HEADERS = ("graph", "budget, %", "solver", "options", "limit, s", "overhead", "bound", "status", "best after, s")


def page() -> str:
    """All parts in markdown."""
    orders = orders_table(read_points(RESULTS, "orders"))
    sizes = tabulate(*sizes_table(read_points(RESULTS, "sizes")), "github", missingval="not built")
    inference = read_points(RESULTS, "inference")
    beside = _INFERENCE.format(limit=inference[0]["point"]["time_limit_s"])
    beside += tabulate(*inference_table(inference), "github")
    sections = [_section(*section) for section in SECTIONS]
    return "\n".join([_HEAD, f"{_SIZES}{sizes}\n", *sections, f"{_ORDERS}{orders}\n", f"{beside}\n", _FIGURE_7])


def sizes_table(entries: list[dict[str, Any]]) -> Table:
    """Rows and headers of Table 1."""
    rows = []
    for entry in _by_size(entries):
        result, twice = entry["result"], entry["point"]["computations"]
        nodes, edges = result["nodes"], result["edges"]
        checkmate = result.get("checkmate", {})
        cells = [entry["point"]["graph"], nodes, edges, nodes * (nodes + edges)]
        cells += [checkmate.get("booleans"), checkmate.get("constraints"), twice * nodes, twice * edges]
        for form in ("stages", "sequence"):
            cells += [result[form][kind] for kind in ("booleans", "integers", "constraints")]
        rows.append(cells)
    headers = ["graph", "n", "m", "n² + nm", "Checkmate: Booleans", "constraints", "Cn", "Cm"]
    for form in ("stages", "sequence"):
        headers += [f"MOCCASIN, {form}: Booleans", "integers", "constraints"]
    return rows, headers


def inference_table(entries: list[dict[str, Any]]) -> Table:
    """Rows and headers of the graphs of inference."""
    rows = []
    for entry in _by_size(entries):
        result = entry["result"]
        ends = ("least_step_bytes", "reordered_bytes", "reordered_bound_bytes", "recomputed_bytes")
        shares = [f"{100 * result[end] / result['input_bytes']:.1f}" for end in ends]
        overhead = f"{result['recomputed_overhead']:.1f}"
        rows.append([entry["point"]["graph"], result["nodes"], result["edges"], *shares, overhead])
    headers = ["graph", "nodes", "edges", "least step, %", "another order, %", "its bound, %"]
    return rows, [*headers, "rematerialized, %", "overhead, %"]


def _by_size(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(entries, key=lambda entry: (entry["result"]["nodes"], entry["point"]["graph"]))


def _section(title: str, part: str, command: str) -> str:
    entries = read_points(RESULTS, part)
    entries.sort(key=lambda entry: (entry["result"]["nodes"], entry["point"]["graph"], -entry["point"]["percent"]))
    headers = (*_HEADERS, "published overhead", "in s") if part.startswith("table2") else _HEADERS
    table = tabulate([_cells(entry, part) for entry in entries], headers, "github", missingval="none")
    picture = f"\n![{title}](moccasin/{part}.png)\n" if part.startswith("figure") else ""
    note = f"{_NOTES[part]}\n\n" if part in _NOTES else ""
    return f"## {title}\n\n`python -m experiments.moccasin.{command}`\n\n{note}{table}\n{picture}"


def _cells(entry: dict[str, Any], part: str) -> tuple[Any, ...]:
    point, result = entry["point"], entry["result"]
    options = ", ".join(f"{name} {value}" for name, value in point["options"].items())
    cells = (point["graph"], point["percent"], point["solver"], options, point["time_limit_s"])
    cells += (result["overhead"], result["bound"], result["status"].lower().replace("_", " "), result["time_to_best_s"])
    return cells + PUBLISHED[point["graph"], point["percent"]] if part.startswith("table2") else cells


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
