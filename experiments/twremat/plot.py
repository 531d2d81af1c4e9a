"""Draws TWRemat's figures 2, 3 and 4, and writes its tables 1 and 2 and the table at equal budgets as Markdown.

python -m experiments.twremat.plot, from what experiments.twremat.figures left in experiments/results/twremat.jsonl
"""

from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from tabulate import tabulate

from experiments.running import (
    RESULTS_FOLDER,
    in_order,
    made_with,
    read_lines,
    read_points,
    write_text,
)
from experiments.twremat.figures import BUDGETS, DECOMPOSITIONS, DEPTHS, PEAK_OF_PAPER, SOLVERS

FOLDER = RESULTS_FOLDER / "twremat"
PICTURES = ("figure2", "figure3", "figure4")
_HEAD = """# TWRemat: tables and figures

Written by `python -m experiments.twremat.plot` from `twremat.jsonl`, which `python -m experiments.twremat.figures`
measures. Each node costs 1. Peaks do not include resident bytes. A length is that of the schedule divided by that of
NoRemat, and "pruned" is the length without repeats that this peak does not need. GreedyRemat's limit is the least
memory of any step, and it had 120 s. TWRemat(k) stops when it is 30 times as long as NoRemat. TWRemat(1) is the method
as published, and "TWRemat" is TWRemat(k) at the k of the lowest peak.

In an "unfused" graph, every operation of TensorFlow's trace of a whole step is a node, with memory of its own for every
output, as in the paper's graphs. In the others, operations that TensorFlow runs as one kernel are one node. All models
are trained by plain gradient descent. In the paper, TensorFlow's official transformer is trained by Adam, which has
several nodes for each parameter.
"""
_ARENA = """The paper measures memory by a static allocation plan: an arena in which each value has a place from its
computation to its last use. An arena takes at least the bytes that are live at once, which the other tables show. Here,
values are placed from the largest to the smallest, each in the smallest gap that holds it."""
_PATHS = """`python -m experiments.twremat.figures --part paths --workers 1`

Each decomposition has a width, which is an upper bound on the graph's treewidth or, with the spine of section 5, on its
pathwidth. Peaks are in percent of NoRemat's. TWRemat(1) recurses to the end. "Lowest" is the k of the lowest peak, with
its length before and after pruning. The paper proves bounds for its path algorithm, whose details are in a supplement
that we do not have. The recursion here is that of Algorithm 1, around the balanced bag of the path."""
_BUDGETS = """Each cell shows the length of a solver's schedule and, in parentheses, the seconds that it took, of at
most {} s. Other work ran on the machine. The last budget of a graph is the peak of TWRemat(1). TWRemat(1) has no
budget: "not found" means that its one schedule has a higher peak, or was not finished in time."""
# Nodes, edges and treewidth of table 1, and of table 2 GiB and lengths of NoRemat, GreedyRemat and TWRemat.
PUBLISHED_GRAPHS = {
    "resnet_unfused": (17_705, 27_312, 11),
    "feed_forward_unfused": (3_217, 4_447, 6),
    "transformer_base_unfused": (15_842, 21_771, 18),
}
PUBLISHED_TRANSFORMERS = {
    "transformer_base_unfused": (3.97, 2.92, 1.14, 1.21, 10.61),
    "transformer_big_unfused": (13.25, 10.12, 2.89, 1.27, 10.64),
}
FAMILIES = {"resnet": "ResNet", "feed_forward": "Feed-forward network"}
METHODS = {
    "no_remat": "NoRemat",
    "greedy": "GreedyRemat",
    "twremat_1": "TWRemat(1)",
    "twremat": "TWRemat",
    "pruned": "TWRemat, pruned",
}
NAMES = {"feed_forward": "{} feed-forward layers", "resnet": "ResNet{}"}
NAMES |= {"transformer": "transformer, {} blocks", "transformer_base": "transformer base, {0} + {0} layers"}
NAMES |= {"transformer_big": "transformer big, {0} + {0} layers"}


def entries(name: str) -> list[dict[str, Any]]:
    """Points and results of a part; empty where it has not run."""
    return read_points(RESULTS_FOLDER / "twremat.jsonl", name)


def graph_name(point: dict[str, Any]) -> str:
    network = point["family"].removesuffix("_unfused")
    return NAMES[network].format(point["depth"]) + (", unfused" if network != point["family"] else "")


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
        "twremat_1": result.get("twremat_1"),
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
    for entry in entries("depth"):
        if entry["point"]["depth"] == 200:
            name, result = graph_name(entry["point"]), entry["result"]
            points = [*family_of(result).values(), {**result["no_remat"], "pruned_length": 1.0}]
            points.sort(key=lambda found: found["length"])
            peaks = [found["peak_bytes"] / 2**30 for found in points]
            axes.plot([found["length"] for found in points], peaks, "o-", label=name)
            axes.plot([found["pruned_length"] for found in points], peaks, "s--", label=f"{name}, pruned")
    axes.set(xlabel="length over NoRemat's", ylabel="peak, GiB", title="TWRemat(k)", xscale="log", ylim=(0, None))
    axes.legend()
    return figure


def deepest() -> list[dict[str, Any]]:
    """The entry of the deepest network of each family."""
    found = {(entry["point"]["family"], entry["point"]["depth"]): entry for entry in entries("depth")}
    return [found[family, max(depths)] for family, depths in DEPTHS.items() if (family, max(depths)) in found]


def table1() -> str:
    rows = []
    for entry in deepest():
        found = [entry["result"][key] for key in ("num_nodes", "num_edges", "treewidth")]
        published = PUBLISHED_GRAPHS.get(entry["point"]["family"], ("", "", ""))
        rows.append([graph_name(entry["point"]), *(n for pair in zip(found, published, strict=True) for n in pair)])
    headers = ("graph", "nodes", "published", "edges", "published", "treewidth at most", "published")
    return tabulate(rows, headers, "pipe", intfmt=",")


def table2() -> str:
    rows = []
    for entry in deepest():
        found = methods(entry["result"])
        peaks = [_cell(found[method], "peak_bytes", 2**20) for method in ("no_remat", "greedy", "twremat_1", "twremat")]
        lengths = [_cell(found[method], "length") for method in ("greedy", "twremat_1", "twremat", "pruned")]
        rows.append([graph_name(entry["point"]), *peaks, *lengths])
    headers = ("graph", "NoRemat, MiB", "Greedy", "TWRemat(1)", "TWRemat")
    lengths_of = ("length: Greedy", "TWRemat(1)", "TWRemat", "pruned")
    digits = ("", *4 * (".0f",), *4 * (".2f",))
    ours = tabulate(rows, (*headers, *lengths_of), "pipe", floatfmt=digits, missingval="none")
    rows = [[NAMES[name.removesuffix("_unfused")].format(6), *row] for name, row in PUBLISHED_TRANSFORMERS.items()]
    published = ("published", "NoRemat, GiB", "Greedy", "TWRemat(1)", "length: Greedy", "TWRemat(1)")
    return f"{ours}\n\n{tabulate(rows, published, 'pipe')}"


def _cell(found: dict[str, float] | None, quantity: str, scale: float = 1) -> float | None:
    return None if found is None else found[quantity] / scale


def table_of_arenas() -> str:
    rows = []
    for entry in deepest():
        result = entry["result"]
        cells: list[float | None] = []
        for method in ("no_remat", "greedy", "twremat_1"):
            live, arena = _cell(result.get(method), "peak_bytes", 2**20), result["arena_bytes"].get(method)
            cells += [live, None if arena is None else arena / 2**20]
        rows.append([graph_name(entry["point"]), *cells])
    headers = ("graph", "NoRemat: live, MiB", "arena", "Greedy: live", "arena", "TWRemat(1): live", "arena")
    return f"{_ARENA}\n\n{tabulate(rows, headers, 'pipe', floatfmt='.1f', missingval='none')}"


def table_of_paths() -> str:
    """Width, peak and length by tree and by path decomposition."""
    rows = []
    for entry in sorted(entries("paths"), key=lambda entry: (entry["point"]["family"], entry["point"]["depth"])):
        result = entry["result"]
        for name in DECOMPOSITIONS:
            found = result[name]
            first = found["by_limit"].get("1")
            best = min(found["by_limit"].values(), key=lambda at: (at["peak_bytes"], at["pruned_length"]))
            at_end = [None, None] if first is None else [_share(first, result), first["length"]]
            cells = [_share(best, result), best["length"], best["pruned_length"], found["cpu_s"]]
            rows.append([graph_name(entry["point"]), result["num_nodes"], name, found["width"], *at_end, *cells])
    headers = ("graph", "nodes", "decomposition", "width", "TWRemat(1): peak, %", "length")
    headers += ("lowest: peak, %", "length", "pruned", "CPU, s")
    digits = ("", "", "", "", ".1f", ".2f", ".1f", ".2f", ".2f", ".1f")
    return f"{_PATHS}\n\n{tabulate(rows, headers, 'pipe', floatfmt=digits, missingval='given up')}"


def _share(found: dict[str, float], result: dict[str, Any]) -> float:
    return 100 * found["peak_bytes"] / result["no_remat"]["peak_bytes"]


def table_at_budgets() -> str:
    """Length of each solver's schedule over NoRemat's, and seconds."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for entry in in_order(entries("budgets"), family=tuple(DEPTHS), depth=range(1000), budget=BUDGETS, solver=SOLVERS):
        point, result = entry["point"], entry["result"]
        length = f"{result['length']:.3f}" if "length" in result else result["status"].lower().replace("_", " ")
        budget = f"{point['budget']} %" if point["budget"] != PEAK_OF_PAPER else f"{100 * result['budget_share']:.1f} %"
        row = cells.setdefault((graph_name(point), budget), {})
        row[point["solver"]] = f"{length} ({result['solve_time_s']:.0f} s)"
    rows = [[*key, *(row.get(solver, "") for solver in SOLVERS)] for key, row in cells.items()]
    limits = sorted({f"{entry['point']['limit_s']:g}" for entry in entries("budgets")})
    headers = ("graph", "budget", "TWRemat(1)", "TWRemat, pruned", "GreedyRemat", "auto")
    return f"{_BUDGETS.format(' or '.join(limits))}\n\n{tabulate(rows, headers, 'pipe')}"


def page() -> str:
    """The tables in markdown."""
    tables = {
        "Table 1": table1(),
        "Table 2": table2(),
        "Static allocation": table_of_arenas(),
        "Section 5: the path decomposition": table_of_paths(),
        "Equal budgets": table_at_budgets(),
    }
    text = "\n\n".join(f"## {title}\n\n{table}" for title, table in tables.items())
    pictures = "\n\n".join(f"![{name}](twremat/{name}.png)" for name in PICTURES)
    around = [entry["environment"] for entry in read_lines(RESULTS_FOLDER / "twremat.jsonl")]
    made = made_with(
        {
            "machine": found["machine"],
            "commit": found["commit"][:12],
            "versions": " ".join(f"{package} {number}" for package, number in found["versions"].items()),
        }
        for found in around
    )
    return f"{_HEAD}\n{text}\n\n## Pictures\n\n{pictures}\n\n{made}\n"


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
