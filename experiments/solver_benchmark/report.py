"""The page of the benchmark's results: overheads, winners by size, performance profile, anytime curves.

    python -m experiments.solver_benchmark.report

A performance profile (Dolan and More, 2002) shows, for each solver, the share of instances that it solves within a
distance of the best schedule any solver found.
"""

import math
from collections import defaultdict

from tabulate import tabulate

from experiments.running import RESULTS_FOLDER, made_with, read_lines, read_rows, write_text
from experiments.solver_benchmark.run import CURVES_PATH, KEY, RESULTS

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

INTEGERS = {"budget_percent", "seed", "num_nodes", "baseline_cost", "peak_resident_mb"}
TEXTS = {"graph", "solver", "order", "status", "error", "bound_order", "commit", "machine", "versions"}
SIZES = (("up to 150", 0, 150), ("151 to 1,000", 151, 1000), ("over 1,000", 1001, 10**9))
WON_POINTS = 0.01
PICTURES = RESULTS_FOLDER / "solver_benchmark"
_PAGE = """# Every solver on every graph

Written by `python -m experiments.solver_benchmark.report` from `solver_benchmark.csv` and
`solver_benchmark_curves.jsonl`, which `python -m experiments.solver_benchmark.run` measures. Each run is a process of
its own, with a time limit of {time_limit_s:g} s. The load of the machine, including the run's own, was at most {load}.

{made_with}

## Instances won, by size of the graph

A solver wins an instance if its overhead is at most 0.01 points above the least that any solver found. Instances
without a schedule by any solver are left out. "none" counts the others for which this solver found no schedule.

{winners}

![The share of instances that each solver solves within a distance of the best](solver_benchmark/profile.png)

![The gap of auto over time, one line for each instance](solver_benchmark/anytime.png)

## Overhead of every solver

A cell shows the overhead in percent, the bound that the solver proved, in brackets, and the time that it took. "="
means that the overhead is proved optimal to within a millionth of the baseline cost.

{table}
"""
_TOLERANCE_PERCENT = 1e-4  # at which `auto` ends


def results() -> list[dict]:
    """Every recorded run; None in place of what a run did not give."""
    return [{column: _value(column, text) for column, text in row.items()} for row in read_rows(RESULTS)]


def _value(column: str, text: str) -> str | float | None:
    if column in TEXTS or not text:
        return text or None
    return int(text) if column in INTEGERS else float(text)


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
    if row["overhead_percent"] is None:
        return (row["status"] or "error").lower()
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
        found = [row["overhead_percent"] for row in instance if row["overhead_percent"] is not None]
        for row in instance if found else ():
            overhead = row["overhead_percent"]
            above[row["solver"]].append(math.inf if overhead is None else overhead - min(found))
    return dict(above)


def winners(rows: list[dict]) -> str:
    """For each solver and size of graph: on how many instances it is within 0.01 points of the best found, of how many
    that any solver solved, and how many it has no schedule for. What the settings of `auto` go by."""
    nodes = {row["graph"]: row["num_nodes"] for row in rows if row["num_nodes"]}
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
    """Saves profile.png and anytime.png, which the page shows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    axes = figure.add_subplot()
    for name, above in sorted(distances(rows).items()):
        reached = sorted(value for value in above if value < math.inf)
        share = [(rank + 1) / len(above) for rank in range(len(reached))]
        axes.step([max(value, 1e-3) for value in reached], share, where="post", label=f"{name} ({len(above)})")
    axes.set(xscale="log", xlabel="overhead above the best found, points", ylabel="share of instances")
    axes.legend(fontsize=6)
    PICTURES.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURES / "profile.png", dpi=120)
    figure = Figure(figsize=(7, 4))
    axes = figure.add_subplot()
    baseline_costs = {tuple(row[key] for key in KEY): row["baseline_cost"] for row in rows}
    for line in read_lines(CURVES_PATH):
        baseline_cost = baseline_costs[tuple(line[key] for key in KEY)]
        gaps = [100 * (cost - bound) / baseline_cost for _, cost, bound in line["curve"]]
        axes.step([max(time, 1e-2) for time, _, _ in line["curve"]], gaps, where="post", alpha=0.6)
    axes.set(xscale="log", yscale="symlog", xlabel="seconds", ylabel="gap of auto, points")
    figure.savefig(PICTURES / "anytime.png", dpi=120)


def page() -> str:
    """Tables and pictures in markdown."""
    rows = results()
    return _PAGE.format(
        table=table(rows),
        winners=winners(rows),
        made_with=made_with(read_rows(RESULTS)),
        time_limit_s=max(row["time_limit_s"] for row in rows),
        load=max(row["load_average"] or 0 for row in rows),
    )


def main() -> None:
    write_text(RESULTS.with_suffix(".md"), page())
    draw(results())
    print(page())


if __name__ == "__main__":
    main()
