"""Tables and pictures of the benchmark's results: overheads, winners by size, performance profile, anytime curves.

    python -m experiments.solver_benchmark.report

A performance profile (Dolan and More, 2002) shows, for each solver, the share of instances that it solves within a
distance of the best schedule any solver found.
"""

import json
import math
from collections import defaultdict

from tabulate import tabulate

from experiments.solver_benchmark.run import RESULTS

# Overhead in percent and seconds, fixed order: Checkmate with Gurobi, then MOCCASIN (its Table 3).
PUBLISHED = {
    ("fcn8-b32-train", 90): "0.0 in 6 s / 0.0 in 3 s",
    ("fcn8-b32-train", 80): "0.1 in 6 s / 0.1 in 3 s",
    ("resnet50-b256-train", 90): "0.1 in 434 s / 0.2 in 65 s",
    ("resnet50-b256-train", 80): "0.3 in 485 s / 0.3 in 69 s",
    ("rl-g1-n100", 90): "0.8 in 19 s / 0.8 in 9 s",
    ("rl-g1-n100", 80): "2.3 in 23 s / 2.3 in 10 s",
    ("rl-g2-n250", 90): "0.9 in 685 s / 0.9 in 55 s",
    ("rl-g2-n250", 80): "none / 4.9 in 640 s",
}

SIZES = (("up to 150", 0, 150), ("151 to 1,000", 151, 1000), ("over 1,000", 1001, 10**9))
WON_POINTS = 0.01
_TOLERANCE_PERCENT = 1e-4  # at which `auto` ends


def results() -> list[dict]:
    """Every recorded run, in a fixed order."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]


def table(rows: list[dict]) -> str:
    """Overhead of each solver by graph, budget and order; "=" where it is proved optimal, within a millionth."""
    solvers = sorted({row["solver"] for row in rows})
    instances = defaultdict(dict)
    for row in rows:
        instances[row["graph"], row["budget_percent"], row["order"]][row["solver"]] = row
    lines = []
    for (graph, budget, order), by_solver in sorted(instances.items()):
        published = PUBLISHED.get((graph, budget), "") if order == "fixed" else ""
        lines.append([graph, budget, order, *(_cell(by_solver.get(name)) for name in solvers), published])
    return tabulate(lines, headers=["graph", "budget %", "order", *solvers, "Checkmate / MOCCASIN"], tablefmt="github")


def _cell(row: dict | None) -> str:
    if row is None:
        return ""
    if row.get("overhead_percent") is None:
        return row.get("status", "error").lower()
    proved = row["overhead_percent"] - row["bound_percent"] <= _TOLERANCE_PERCENT
    sign = "=" if proved else f" (bound {row['bound_percent']:.3f})" if row["bound_percent"] else ""
    return f"{row['overhead_percent']:.3f}{sign}, {row['solve_time_s']:.1f} s"


def distances(rows: list[dict]) -> dict[str, list[float]]:
    """For each solver, its overhead above the best of all on each instance, in points; infinite without a schedule."""
    by_instance = defaultdict(list)
    for row in rows:
        by_instance[row["graph"], row["budget_percent"], row["order"]].append(row)
    above = defaultdict(list)
    for instance in by_instance.values():
        found = [row["overhead_percent"] for row in instance if row.get("overhead_percent") is not None]
        for row in instance if found else ():
            overhead = row.get("overhead_percent")
            above[row["solver"]].append(math.inf if overhead is None else overhead - min(found))
    return dict(above)


def winners(rows: list[dict]) -> str:
    """For each solver and size of graph: on how many instances it is within 0.01 points of the best found, of how many
    that any solver solved, and how many it has no schedule for. What the settings of `auto` go by."""
    nodes = {row["graph"]: row["num_nodes"] for row in rows if "num_nodes" in row}
    sized: dict[str, dict[str, list[float]]] = {}
    for label, few, many in SIZES:
        sized[label] = distances([row for row in rows if few <= nodes.get(row["graph"], -1) <= many])
    lines = []
    for name in sorted({name for above in sized.values() for name in above}):
        cells = [sized[label].get(name, []) for label, _, _ in SIZES]
        lines.append([name, *map(_share_won, cells)])
    return tabulate(lines, headers=["solver", *(f"{label} nodes" for label, _, _ in SIZES)], tablefmt="github")


def _share_won(above: list[float]) -> str:
    if not above:
        return ""
    missing = above.count(math.inf)
    return f"{sum(value <= WON_POINTS for value in above)} of {len(above)}" + (f", {missing} none" if missing else "")


def draw(rows: list[dict]) -> None:
    """Saves profile.png and anytime.png beside the results."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    axes = figure.add_subplot()
    for name, above in sorted(distances(rows).items()):
        reached = sorted(value for value in above if value < math.inf)
        share = [(rank + 1) / len(above) for rank in range(len(reached))]
        axes.step([max(value, 1e-3) for value in reached], share, where="post", label=f"{name} ({len(above)})")
    axes.set(xscale="log", xlabel="overhead above the best found, points", ylabel="share of instances")
    axes.legend(fontsize=6)
    figure.savefig(RESULTS / "profile.png", dpi=120)
    figure = Figure(figsize=(7, 4))
    axes = figure.add_subplot()
    for row in rows:
        if row["solver"] == "auto" and row.get("curve"):
            times = [point[0] for point in row["curve"]]
            gaps = [100 * (cost - bound) / row["baseline_cost"] for _, cost, bound in row["curve"]]
            axes.step([max(time, 1e-2) for time in times], gaps, where="post", alpha=0.6)
    axes.set(xscale="log", yscale="symlog", xlabel="seconds", ylabel="gap of auto, points")
    figure.savefig(RESULTS / "anytime.png", dpi=120)


def main() -> None:
    rows = results()
    (RESULTS / "table.md").write_text(table(rows) + "\n")
    (RESULTS / "by_size.md").write_text(winners(rows) + "\n")
    draw(rows)
    print(table(rows), winners(rows), sep="\n\n")


if __name__ == "__main__":
    main()
