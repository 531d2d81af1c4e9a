"""Draws the FastSA figures from experiments/results/fastsa.jsonl, and writes its page.

python -m experiments.fastsa.plot
"""

from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from tabulate import tabulate

from experiments.running import RESULTS_FOLDER, read_points, write_text

FOLDER = RESULTS_FOLDER / "fastsa"
PICTURES = ("figure1", "figure4", "figure7", "figure9", "speed")
_HEAD = """# FastSA: tables and figures

Written by `python -m experiments.fastsa.plot` from `fastsa.jsonl`, which
`python -m experiments.fastsa.run NAME` measures. The order is free, at most 30 s on one core.
Seconds are CPU seconds, without the compilation of the loop.
"""


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


def figure9(axes: plt.Axes) -> None:
    """Overhead against budget."""
    found = entries("figure9")
    for graph in sorted({entry["point"]["graph"] for entry in found}):
        points = [entry for entry in found if entry["point"]["graph"] == graph]
        points = [entry for entry in points if entry["result"]["overhead_percent"] is not None]
        points.sort(key=lambda entry: entry["result"]["peak_percent"])
        axes.plot(
            [entry["result"]["peak_percent"] for entry in points],
            [entry["result"]["overhead_percent"] for entry in points],
            marker=".",
            label=graph,
        )
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


def page() -> str:
    """The tables in markdown."""
    groups = {"Table 1": ("table1",), "Table 2": ("table2",), "Figure 4": ("figure4",), "Figure 9": ("figure9",)}
    groups |= {"Figure 7": ("figure7",), "Layered graphs": ("generated",)}
    tables = {title: table(names) for title, names in groups.items()} | {"Moves, overhead in %": moves_table()}
    text = "\n\n".join(f"## {title}\n\n{content}" for title, content in tables.items() if content)
    pictures = "\n\n".join(f"![{name}](fastsa/{name}.png)" for name in PICTURES)
    return f"{_HEAD}\n{text}\n\n## Pictures\n\n{pictures}\n"


def main() -> None:
    write_text(RESULTS_FOLDER / "fastsa.md", page())
    needs = {"figure1": "figure4", "figure4": "figure4", "figure7": "figure7", "figure9": "figure9", "speed": "speed"}
    for draw in (figure1, figure4, figure7, figure9, speed):
        if not entries(needs[draw.__name__]):
            print(f"{draw.__name__}: run it first: python -m experiments.fastsa.run {needs[draw.__name__]}")
            continue
        figure, axes = plt.subplots(figsize=(7, 7 if draw is figure4 else 4.5), layout="constrained")
        draw(axes)
        figure.savefig(FOLDER / f"{draw.__name__}.png", dpi=110)


if __name__ == "__main__":
    main()
