"""Draws TWRemat's figures 2, 3 and 4, and writes its tables 1 and 2 and the table at equal budgets as Markdown.

python -m experiments.twremat.plot, from what experiments.twremat.figures left in experiments/results/twremat.jsonl
"""

from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from tabulate import tabulate

from experiments.running import RESULTS_FOLDER, read_points, write_text

FOLDER = RESULTS_FOLDER / "twremat"
PICTURES = ("figure2", "figure3", "figure4")
_HEAD = """# TWRemat: tables and figures

Written by `python -m experiments.twremat.plot` from `twremat.jsonl`, which
`python -m experiments.twremat.figures` measures. Nodes cost 1 each.
Peaks leave out what is resident; a length is that of the schedule over that of NoRemat; "pruned" is the length once
repeats that this peak does not need are dropped.
"""
FAMILIES = {"resnet": "ResNet", "feed_forward": "Feed-forward network"}
METHODS = {"no_remat": "NoRemat", "greedy": "GreedyRemat", "twremat": "TWRemat", "pruned": "TWRemat, pruned"}
NAMES = {"feed_forward": "{} feed-forward layers", "resnet": "ResNet{}"}
NAMES |= {"transformer": "transformer, {} blocks", "transformer_base": "transformer base, {0} + {0} layers"}


def entries(name: str) -> list[dict[str, Any]]:
    """Points and results of a part; empty where it has not run."""
    return read_points(RESULTS_FOLDER / "twremat.jsonl", name)


def graph_name(point: dict[str, Any]) -> str:
    return NAMES[point["family"]].format(point["depth"])


def family_of(result: dict[str, Any]) -> dict[int, dict[str, float]]:
    """The figures of TWRemat(k) by k."""
    return {int(name.partition("_")[2]): found for name, found in result.items() if name.startswith("twremat_")}


def lowest(result: dict[str, Any]) -> dict[str, float]:
    """TWRemat(k) of the lowest peak; of these the shortest once pruned."""
    return min(family_of(result).values(), key=lambda found: (found["peak_bytes"], found["pruned_length"]))


def methods(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    best = lowest(result)
    return {
        "no_remat": result["no_remat"],
        "greedy": result["greedy"],
        "twremat": best,
        "pruned": {**best, "length": best["pruned_length"]},
    }


def by_depth(quantity: str, scale: float, label: str, left_out: str) -> plt.Figure:
    """A panel a family, a line a method."""
    figure, panels = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for (family, title), axes in zip(FAMILIES.items(), panels, strict=True):
        found = sorted(
            (entry for entry in entries("depth") if entry["point"]["family"] == family),
            key=lambda entry: entry["point"]["depth"],
        )
        depths = [entry["point"]["depth"] for entry in found]
        for method, name in METHODS.items():
            if method != left_out:
                axes.plot(depths, [methods(e["result"])[method][quantity] / scale for e in found], "o-", label=name)
        axes.set(title=title, xlabel="layers", ylabel=label, ylim=(0, None))
    panels[0].legend()
    return figure


def figure4() -> plt.Figure:
    """ResNet200: peak against length, one point a k."""
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    (result,) = (e["result"] for e in entries("depth") if e["point"] == {"family": "resnet", "depth": 200})
    points = [*family_of(result).values(), {**result["no_remat"], "pruned_length": 1.0}]
    points.sort(key=lambda found: found["length"])
    peaks = [found["peak_bytes"] / 2**30 for found in points]
    axes.plot([found["length"] for found in points], peaks, "o-", label="TWRemat(k)")
    axes.plot([found["pruned_length"] for found in points], peaks, "s--", label="TWRemat(k), pruned")
    axes.set(xlabel="length over NoRemat's", ylabel="peak, GiB", title="ResNet200", xscale="log", ylim=(0, None))
    axes.legend()
    return figure


def table1() -> str:
    largest = {entry["point"]["family"]: entry for entry in entries("depth")}
    for entry in entries("depth"):
        if entry["point"]["depth"] > largest[entry["point"]["family"]]["point"]["depth"]:
            largest[entry["point"]["family"]] = entry
    rows = [
        [graph_name(entry["point"]), *(entry["result"][key] for key in ("num_nodes", "num_edges", "treewidth"))]
        for entry in largest.values()
    ]
    return tabulate(rows, ("graph", "nodes", "edges", "treewidth at most"), "pipe", intfmt=",")


def table2() -> str:
    rows = []
    for entry in entries("depth"):
        if entry["point"]["family"].startswith("transformer"):
            found = methods(entry["result"])
            stock, best = found["no_remat"]["peak_bytes"], found["twremat"]
            rows.append(
                [
                    graph_name(entry["point"]),
                    *(found[method]["peak_bytes"] / 2**20 for method in ("no_remat", "greedy", "twremat")),
                    stock / best["peak_bytes"],
                    found["greedy"]["length"],
                    best["length"],
                    best["pruned_length"],
                ]
            )
    headers = (
        "graph",
        "NoRemat, MiB",
        "Greedy, MiB",
        "TWRemat, MiB",
        "times less",
        "length: Greedy",
        "TWRemat",
        "pruned",
    )
    return tabulate(rows, headers, "pipe", floatfmt=("", ".0f", ".0f", ".0f", ".2f", ".2f", ".1f", ".2f"))


def table_at_budgets() -> str:
    """Length of each solver's schedule over NoRemat's, and seconds."""
    found = {tuple(sorted((k, v) for k, v in e["point"].items() if k != "limit_s")): e for e in entries("budgets")}
    cells: dict[tuple[str, int], dict[str, str]] = {}
    for entry in found.values():
        point, result = entry["point"], entry["result"]
        length = f"{result['length']:.3f}" if "length" in result else result["status"].lower().replace("_", " ")
        row = cells.setdefault((graph_name(point), point["budget"]), {})
        row[point["solver"]] = f"{length} ({result['solve_time_s']:.0f} s)"
    solvers = ("twremat", "xla_greedy", "auto")
    rows = [
        [graph, f"{budget} %", *(row.get(solver, "") for solver in solvers)]
        for (graph, budget), row in sorted(cells.items(), key=lambda item: (item[0][0], -item[0][1]))
    ]
    return tabulate(rows, ("graph", "budget", "TWRemat, pruned", "GreedyRemat", "auto"), "pipe")


def page() -> str:
    """The tables in markdown."""
    tables = {"Table 1": table1(), "Table 2": table2(), "Equal budgets": table_at_budgets()}
    text = "\n\n".join(f"## {title}\n\n{table}" for title, table in tables.items())
    pictures = "\n\n".join(f"![{name}](twremat/{name}.png)" for name in PICTURES)
    return f"{_HEAD}\n{text}\n\n## Pictures\n\n{pictures}\n"


def main() -> None:
    drawn = {
        "figure2": by_depth("peak_bytes", 2**30, "peak, GiB", left_out="pruned"),
        "figure3": by_depth("length", 1, "length over NoRemat's", left_out=""),
        "figure4": figure4(),
    }
    for name, figure in drawn.items():
        figure.savefig(FOLDER / f"{name}.png", dpi=110)
    write_text(RESULTS_FOLDER / "twremat.md", page())
    print(page())


if __name__ == "__main__":
    main()
