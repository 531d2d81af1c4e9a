"""MOCCASIN, Figure 1 (progress against Checkmate's MILP), 5 (progress at four budgets), 6 (time by size) and 7
(pictures of two graphs).

Figure 1's real-world graph of 442 nodes was not published: a random layered graph of as many stands for it.

    python -m experiments.moccasin.figures [--time-limit 30] [--figure 1|5|6|7]
"""

import argparse
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.layer_graphs import committed_graph, num_edges
from experiments.layered_graphs import layered_graph
from experiments.moccasin.page import write_page
from experiments.moccasin.points import compute, is_here, point
from experiments.running import RESULTS_FOLDER, Point, Runner, run_points

FOLDER = RESULTS_FOLDER / "moccasin"
METHODS = ("moccasin", "checkmate_milp")
FIGURE_5 = ("rl-g1-n100", "rl-g2-n250", "rl-g3-n500", "rl-g4-n1000")
PERCENTS = (95, 90, 85, 80)
SIZES = (25, 50, 100, 250, 500, 1000)


def points_of(figure: int, time_limit_s: float) -> list[Point]:
    if figure == 1:
        return [point("L442", 80, time_limit_s, solver=method) for method in METHODS]
    if figure == 5:
        graphs = [graph for graph in FIGURE_5 if is_here(graph)]
        return [
            point(graph, percent, time_limit_s, solver=method)
            for graph in graphs
            for method in METHODS
            for percent in PERCENTS
        ]
    methods = {25: METHODS, 50: METHODS, 100: METHODS}
    return [
        point(f"L{size}", 90, time_limit_s, solver=method)
        for size in SIZES
        for method in methods.get(size, METHODS[:1])
    ]


def _progress(axes: Axes, entry: dict[str, Any], label: str, linestyle: str = "-") -> None:
    progress = entry["result"]["progress"]
    if not progress:
        axes.plot([], [], label=f"{label}: none", linestyle=linestyle)
        return
    times = [step[0] for step in progress] + [entry["result"]["solve_time_s"]]
    costs = [step[1] for step in progress]
    (line,) = axes.step(times, [*costs, costs[-1]], where="post", label=label, linestyle=linestyle)
    bounds = [step[2] for step in progress]
    axes.step(times, [*bounds, entry["result"]["bound"]], where="post", linestyle=":", color=line.get_color())


def draw(figure: int, done: list[dict[str, Any]]) -> Figure:
    """Solid: overhead, dashed that of Checkmate's MILP in Figure 5; dotted: its proved lower bound."""
    if figure == 5:
        graphs = list(dict.fromkeys(entry["point"]["graph"] for entry in done))
        drawn = Figure(figsize=(4 * len(graphs), 3.5), layout="constrained")
        for axes, graph in zip(drawn.subplots(1, len(graphs), squeeze=False)[0], graphs, strict=True):
            for entry in done:
                if entry["point"]["graph"] == graph:
                    is_ours = entry["point"]["solver"] == METHODS[0]
                    method, linestyle = ("MOCCASIN", "-") if is_ours else ("Checkmate", "--")
                    _progress(axes, entry, f"{method}, {entry['point']['percent']} %", linestyle)
            axes.set(title=graph, xlabel="seconds", ylabel="overhead, %")
            axes.legend(fontsize="small")
        return drawn
    drawn = Figure(figsize=(5, 3.5), layout="constrained")
    axes = drawn.subplots()
    if figure == 1:
        for entry in done:
            _progress(axes, entry, entry["point"]["solver"])
        axes.set(xlabel="seconds", ylabel="overhead, %", title=f"{done[0]['point']['graph']} at 80 %")
    else:
        for method in METHODS:
            there = [e["result"] for e in done if e["point"]["solver"] == method and e["result"]["time_to_best_s"]]
            axes.loglog([r["nodes"] for r in there], [r["time_to_best_s"] for r in there], marker=".", label=method)
        axes.set(xlabel="nodes", ylabel="seconds until the best schedule", title="random layered graphs at 90 %")
    axes.legend()
    return drawn


def draw_graphs() -> Figure:
    """Figure 7: each node at the length of the longest path to it, edges drawn as lines."""
    drawn = Figure(figsize=(10, 4), layout="constrained")
    graphs = (committed_graph("fcn8"), layered_graph(100, seed=0))
    for axes, graph in zip(drawn.subplots(1, len(graphs)), graphs, strict=True):
        depth: list[int] = []
        for inputs in graph.predecessors:
            depth.append(1 + max((depth[before] for before in inputs), default=-1))
        width = [depth.count(level) for level in range(max(depth) + 1)]
        height = [depth[:node].count(level) - (width[level] - 1) / 2 for node, level in enumerate(depth)]
        for node, inputs in enumerate(graph.predecessors):
            for before in inputs:
                axes.plot((depth[before], depth[node]), (height[before], height[node]), color="grey", linewidth=0.4)
        axes.scatter(depth, height, s=8, zorder=2)
        axes.set(title=f"{graph.name}: {len(graph.nodes)} nodes, {num_edges(graph)} edges")
        axes.axis("off")
    return drawn


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds for each solve")
    parser.add_argument("--figure", nargs="*", type=int, choices=(1, 5, 6, 7), default=[1, 5, 6, 7])
    options = parser.parse_args(arguments)
    for figure in options.figure:
        if figure == 7:
            draw_graphs().savefig(FOLDER / "figure7.png", dpi=120)
            continue
        points = points_of(figure, options.time_limit)
        done = run_points(points, compute, RESULTS_FOLDER / "moccasin.jsonl", part=f"figure{figure}", runner=Runner(1))
        draw(figure, done).savefig(FOLDER / f"figure{figure}.png", dpi=120)
        for entry in done:
            result = entry["result"]
            print(
                *(entry["point"][key] for key in ("graph", "percent", "solver")),
                result["overhead"],
                result["bound"],
                result["time_to_best_s"],
            )
    write_page()


if __name__ == "__main__":
    main()
