"""Draws the FastSA figures from experiments/results/fastsa.jsonl, and writes its page.

python -m experiments.fastsa.plot
"""

from math import log2
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from tabulate import tabulate

from experiments.running import RESULTS_FOLDER, read_points, write_text

FOLDER = RESULTS_FOLDER / "fastsa"
PICTURES = ("figure1", "figure4", "figure7", "figure8", "figure9", "speed")
_HEAD = """# FastSA: tables and figures

Written by `python -m experiments.fastsa.plot` from `fastsa.jsonl`, which `python -m experiments.fastsa.run NAME`
measures. The order is free, and each run has at most 30 s on one core. Seconds are CPU seconds, without the compilation
of the loop.
"""
_CURVE = """Costs are units, and the settings are the paper's: groups are annealed first and, after 20 million
mutations, nodes. Both parts run to their ends, without a time limit and whether or not the budget is met. The objective
is max(budget, M) C, where M is the peak, relative to that of the input order, even if the annealing used another one.

"""
_SLOTS = """Appendix C.3 describes a segment tree into which steps are inserted, so that a sequence needs no empty
slots. Here, a sequence has five slots for each step, rounded up to a power of two, and the tree is one array over them.
The table shows the cost of empty slots on layered graphs at 80 % of the peak with the paper's moves, on one core: with
two slots a step, five (ours), twenty, and the paper's 2^20 in total. "Entries changed" is the mean number of entries of
the tree that a valid mutation changes.

A tree without empty slots still needs a depth for its number of steps, which is one or two levels less than with two
slots a step. The last column is therefore about all that it could gain if inserting, balancing and following pointers
cost nothing. Events would also lose their order: an event is the number of a slot, which is compared at once, whereas
each comparison in such a tree is a walk to the root. This implementation therefore has no such tree.

"""


_ORDERS = """`python -m experiments.fastsa.run orders`

Peaks are in percent of the input order's, and no node is computed twice. FastSA makes two million mutations, which only
move nodes. The order search of `auto` also proves a bound."""
_OFFLOADING = """`python -m experiments.fastsa.run offloading`

The paper adds fetches to the sequence as one more mutation, and reports no results. The objective is the paper's: the
costs of all nodes that run, of all fetches, and of one copy out for each fetched value. Each of them costs 1. The
second overhead is the simulator's, where copies run while nodes compute. The settings are the solver's default.
Offloading alone has no mutation that adds a node. Budgets are shares of the input order's peak.

At these costs, offloading a value costs at least 2, and computing it again often costs 1. With both, an optimum would
never cost more than with either alone. A single mutation cannot replace a fetch by a recomputation: without the fetch
the peak is above the budget, and with both the cost is higher. Our compound mutations remove a fetch and recompute in
one step. The paper's four single mutations, drawn equally often, have no such step."""
_SEEDS = """`python -m experiments.fastsa.run seeds`

The paper measures networks in PyTorch. These are four published graphs and two networks, in
free order, with the solver's default settings."""


def entries(name: str) -> list[dict[str, Any]]:
    """Points and results of an experiment; empty where it has not run."""
    return read_points(RESULTS_FOLDER / "fastsa.jsonl", name)


def label(point: dict[str, Any]) -> str:
    return f"{point['graph']} ({point['costs']} costs)"


def figure1(axes: plt.Axes) -> None:
    """Seconds against nodes, one point a graph and budget."""
    for name, marker in (("figure4", "o"), ("table1", "s"), ("generated", "^")):
        found = entries(name)
        axes.scatter(
            [entry["result"]["num_nodes"] for entry in found],
            [entry["result"]["cpu_s"] for entry in found],
            marker=marker,
            label={"figure4": "Keras op graphs", "table1": "published", "generated": "layered"}[name],
        )
    axes.set(xscale="log", yscale="log", xlabel="nodes", ylabel="seconds (one core)")
    axes.legend()


def figure4(axes: plt.Axes) -> None:
    """Peak and overhead at 50 and 25 % of the stock peak."""
    found = [entry for entry in entries("figure4") if entry["result"]["overhead_percent"] is not None]
    names = [f"{label(entry['point'])}, {entry['point']['budget_percent']} %" for entry in found]
    axes.barh(names, [entry["result"]["overhead_percent"] for entry in found])
    axes.set(xlabel="overhead, % of the baseline cost")


def figure7(axes: plt.Axes) -> None:
    """Peak reached with and without node grouping."""
    found = entries("figure7")
    axes.bar([entry["point"]["solver"] for entry in found], [entry["result"]["peak_percent"] for entry in found])
    axes.set(ylabel="peak, % of the input order's")
    axes.axhline(25, color="black", linestyle=":")


def figure8(axes: plt.Axes) -> None:
    """The objective as the annealing goes on, by what it sees of memory."""
    for entry in entries("figure8"):
        point, curve = entry["point"], entry["result"]["curve"]
        style = "-" if point["peak"] == "maximum" else "--"
        label = f"{point['peak']}, {point['budget_percent']} %"
        axes.plot([done / 1e6 for done, *_ in curve], [objective for _, objective, _ in curve], style, label=label)
    axes.axvline(20, color="black", linestyle=":")
    axes.set(xlabel="million mutations", ylabel="max(budget, M) C, of that of the input order", yscale="log")
    axes.legend()


def figure9(axes: plt.Axes) -> None:
    """Overhead against budget, by FastSA and, with dashes, by Checkmate's linear program."""
    found = entries("figure9")
    colors: dict[str, str] = {}
    for solver, graph in sorted({(entry["point"]["solver"], entry["point"]["graph"]) for entry in found}, reverse=True):
        points = [entry for entry in found if (entry["point"]["solver"], entry["point"]["graph"]) == (solver, graph)]
        points = [entry for entry in points if entry["result"]["overhead_percent"] is not None]
        points.sort(key=lambda entry: entry["result"]["peak_percent"])
        (line,) = axes.plot(
            [entry["result"]["peak_percent"] for entry in points],
            [entry["result"]["overhead_percent"] for entry in points],
            marker=".",
            color=colors.get(graph),
            linestyle="-" if solver == "fastsa" else "--",
            label=graph if solver == "fastsa" else f"{graph}, {solver}",
        )
        colors[graph] = line.get_color()
    axes.set(xlabel="peak, % of the input order's", ylabel="overhead, %")
    axes.legend()


def speed(axes: plt.Axes) -> None:
    """Mutations tried a second against nodes."""
    for moves, name in (("paper", "the paper's moves"), ("default", "ours")):
        found = sorted(
            (entry["point"]["num_nodes"], entry["result"]["tried_per_s"])
            for entry in entries("speed")
            if entry["point"]["moves"] == moves
        )
        axes.plot([nodes for nodes, _ in found], [rate for _, rate in found], "o-", label=name)
    axes.axhline(1e6, color="black", linestyle=":")
    axes.set(xscale="log", yscale="log", xlabel="nodes", ylabel="mutations tried a second (one core)")
    axes.legend()


def table(names: tuple[str, ...]) -> str:
    """Overhead, peak and seconds, one row a point."""
    rows = []
    for entry in (entry for name in names for entry in entries(name)):
        point, result = entry["point"], entry["result"]
        overhead = result["overhead_percent"]
        row = [point["graph"], point["costs"], result["num_nodes"], point["budget_percent"], point["solver"]]
        rows.append(
            [*row, result["status"] if overhead is None else f"{overhead:.2f}", result["peak_percent"], result["cpu_s"]]
        )
    rows.sort(key=lambda row: (row[2], row[0], row[1], -row[3], row[4]))
    headers = ("graph", "costs", "nodes", "budget, %", "solver", "overhead, %", "peak, %", "CPU s")
    return tabulate(rows, headers, "pipe", floatfmt=".2f", intfmt=",")


def moves_table() -> str:
    """Overhead of each set of moves, median (least to most) of the seeds; a column a graph."""
    found = entries("moves")
    graphs = list(dict.fromkeys((entry["point"]["graph"], entry["point"]["budget_percent"]) for entry in found))
    rows = []
    for solver in dict.fromkeys(entry["point"]["solver"] for entry in found):
        row = [solver.removeprefix("moves: ")]
        for graph, budget in graphs:
            alike = {"graph": graph, "budget_percent": budget, "solver": solver}
            chosen = [entry["result"]["overhead_percent"] for entry in found if alike.items() <= entry["point"].items()]
            reached = sorted(overhead for overhead in chosen if overhead is not None)
            row.append(
                f"{median(reached):.2f} ({reached[0]:.2f} to {reached[-1]:.2f}), {len(reached)} of {len(chosen)}"
                if reached
                else "none found"
            )
        rows.append(row)
    return tabulate(rows, ("moves", *(f"{graph}, {budget} %" for graph, budget in graphs)), "pipe")


def curve_table() -> str:
    """Figure 8's objective after so many mutations; a row a budget and what the annealing sees of memory."""
    at = (1_000_000, 5_000_000, 10_000_000, 20_000_000, 22_000_000)
    rows = []
    for entry in entries("figure8"):
        point, result = entry["point"], entry["result"]
        objective = {done: value for done, value, _ in result["curve"]}
        row = (point["graph"], result["num_nodes"], result["groups"], point["budget_percent"], point["peak"])
        rows.append((*row, *(objective[done] for done in at), result["curve"][-1][2], result["cpu_s"]))
    rows.sort(key=lambda row: (-row[3], row[4]))
    after = [f"after {done // 1_000_000} million" for done in at]
    headers = ("graph", "nodes", "groups", "budget, %", "M by", *after, "peak, %", "CPU s")
    return tabulate(rows, headers, "pipe", floatfmt=".3f", intfmt=",")


def slots_table() -> str:
    """What empty slots cost: rates of mutations by the length of the sequence, a row a graph and length."""
    found = sorted(entries("slots"), key=lambda entry: tuple(entry["point"].values()))
    shortest = {entry["point"]["num_nodes"]: entry["result"] for entry in reversed(found)}
    rows = []
    for entry in found:
        num_nodes, result = entry["point"]["num_nodes"], entry["result"]
        depths = (result["slots"].bit_length() - 1, f"{log2(num_nodes):.1f}")
        rates = (result["tried_per_s"] / 1e6, result["valid_per_s"] / 1e6, 100 * result["valid_share"])
        share = round(100 * result["valid_per_s"] / shortest[num_nodes]["valid_per_s"])
        rows.append((num_nodes, result["slots"], *depths, round(result["changed"]), *rates, share))
    headers = (
        "nodes", "slots", "depth", "least depth without empty slots", "entries changed", "million tried a second",
        "million valid a second", "valid, %", "valid a second, % of those with fewest slots",
    )  # fmt: skip
    return tabulate(rows, headers, "pipe", floatfmt=".2f", intfmt=",")


def orders_table() -> str:
    """Appendix B.2: least peaks without rematerialization."""
    kinds = ("annealed_percent", "annealed_cpu_s", "searched_percent", "searched_cpu_s", "bound_percent")
    found = sorted(entries("orders"), key=lambda entry: entry["result"]["num_nodes"])
    rows = [[e["point"]["graph"], e["result"]["num_nodes"], *(e["result"][kind] for kind in kinds)] for e in found]
    headers = ("graph", "nodes", "annealed: peak, %", "CPU s", "`search_order`: peak, %", "CPU s", "bound, %")
    return f"{_ORDERS}\n\n{tabulate(rows, headers, 'pipe', floatfmt='.2f', intfmt=',')}"


def offloading_table() -> str:
    """Appendix B.3: recomputation, offloading and both."""
    kinds = ("overlapped_percent", "num_recomputed", "num_fetches", "peak_percent", "cpu_s")
    rows = []
    for entry in entries("offloading"):
        point, result = entry["point"], entry["result"]
        overhead = result.get("overhead_percent")
        first = result["status"] if overhead is None else f"{overhead:.2f}"
        figures = [first, *(result.get(kind) for kind in kinds)]
        rows.append([point["graph"], result["num_nodes"], point["budget_percent"], point["way"], *figures])
    rows.sort(key=lambda row: (row[1], -row[2]))
    headers = (
        "graph", "nodes", "budget, %", "way", "overhead, %", "with copies beside nodes, %", "recomputed", "fetches",
        "peak, %", "CPU s",
    )  # fmt: skip
    return f"{_OFFLOADING}\n\n{tabulate(rows, headers, 'pipe', floatfmt='.2f', intfmt=',')}"


def seeds_table() -> str:
    """Appendix D.6: the spread of overheads over seeds."""
    by_graph: dict[tuple[Any, ...], list[float | None]] = {}
    for entry in entries("seeds"):
        point, result = entry["point"], entry["result"]
        key = (result["num_nodes"], point["graph"], point["budget_percent"])
        by_graph.setdefault(key, []).append(result["overhead_percent"])
    rows = []
    for (nodes, graph, budget), overheads in sorted(by_graph.items()):
        known = [overhead for overhead in overheads if overhead is not None]
        rows.append([graph, nodes, budget, len(overheads), len(known), min(known), median(known), max(known)])
    headers = ("graph", "nodes", "budget, %", "seeds", "solved", "least overhead, %", "median", "most")
    return f"{_SEEDS}\n\n{tabulate(rows, headers, 'pipe', floatfmt='.3f', intfmt=',')}"


def page() -> str:
    """The tables in markdown."""
    groups = {"Table 1": ("table1",), "Table 2": ("table2",), "Figure 4": ("figure4",), "Figure 9": ("figure9",)}
    groups |= {"Figure 7": ("figure7",), "Layered graphs": ("generated",)}
    tables = {title: table(names) for title, names in groups.items()} | {"Moves, overhead in %": moves_table()}
    tables |= {"Figure 8 and appendix C.2: the objective by the maximum and by LogAddExp": _CURVE + curve_table()}
    tables |= {"Appendix C.3: empty slots or a dynamic segment tree": _SLOTS + slots_table()}
    tables |= {"Appendix B.2: the order of least memory alone": orders_table()}
    tables |= {"Appendix B.3: recomputation and offloading": offloading_table()}
    tables |= {"Appendix D.6: spread over seeds": seeds_table()}
    text = "\n\n".join(f"## {title}\n\n{content}" for title, content in tables.items() if content)
    pictures = "\n\n".join(f"![{name}](fastsa/{name}.png)" for name in PICTURES)
    return f"{_HEAD}\n{text}\n\n## Pictures\n\n{pictures}\n"


def main() -> None:
    write_text(RESULTS_FOLDER / "fastsa.md", page())
    needs = {"figure1": "figure4", "figure4": "figure4", "figure7": "figure7", "figure9": "figure9", "speed": "speed"}
    needs["figure8"] = "figure8"
    for draw in (figure1, figure4, figure7, figure8, figure9, speed):
        if not entries(needs[draw.__name__]):
            print(f"{draw.__name__}: run it first: python -m experiments.fastsa.run {needs[draw.__name__]}")
            continue
        figure, axes = plt.subplots(figsize=(7, 7 if draw is figure4 else 4.5), layout="constrained")
        draw(axes)
        figure.savefig(FOLDER / f"{draw.__name__}.png", dpi=110)


if __name__ == "__main__":
    main()
