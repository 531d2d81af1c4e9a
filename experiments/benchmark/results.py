"""What is known of each instance of the benchmark: who found which schedule, after how long, and what is proved.

An instance is a graph, a budget and an order. A row says what one solver found of it in one run:

- `overhead_percent`: of its schedule, and `found_after_s`, when it had that;
- `bound_percent`: the least overhead that it proved possible;
- `inverse_cost_s`: the integral of baseline cost over the cost of its best schedule, over the time limit. With it the
  primal integral can be computed whenever a better schedule becomes known.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from statistics import geometric_mean, mean
from typing import Any

from tabulate import tabulate

from checkmate_tf.serialization import load_graph
from checkmate_tf.solution_json import save_solution
from checkmate_tf.solvers import SOLVER_NAMES, Solver, get_solver, solve
from checkmate_tf.solvers.fastsa.solver import Fastsa
from experiments.benchmark.instances import Entry
from experiments.running import RESULTS_FOLDER, Point, Row, made_with, read_rows, run_apart

RESULTS = RESULTS_FOLDER / "benchmark.csv"
KEY = ("graph", "budget_percent", "order", "solver", "time_limit_s")
COLUMNS = (
    *KEY, "digest", "nodes", "status", "overhead_percent", "bound_percent", "found_after_s", "seconds",
    "inverse_cost_s", "load_average",
)  # fmt: skip
ORDERS = ("fixed", "free")
AS_PUBLISHED = "fastsa as published"
SOLVERS = (*SOLVER_NAMES, AS_PUBLISHED)
_EQUAL_PERCENT = 1e-4  # overheads that differ by less are the same
_PAGE = """# The open benchmark: best known schedules

Written by `python -m experiments.pages benchmark.md` from `benchmark.csv`, which
`python -m experiments.benchmark solve FOLDER` and `check --record` fill.
[BENCHMARK.md](../../docs/BENCHMARK.md) describes the instances and how to submit schedules.

## What is proved

An instance is proved if the overhead of its best schedule equals its lower bound, to {equal} points. It is impossible
if a solver proved that no schedule stays within the budget. The last column counts the instances whose best known
schedule is by each solver; of equal schedules, the first one found counts.

{state}

## Best known

Overhead and lower bound are in percent of the cost of computing every node once. The gap is the cost of the best
schedule divided by the lower bound, minus 1. In fixed order, a lower bound is about Checkmate's stages. There is none
if no solver proved more than 0.

{best}

## The networks of the FastSA paper

Overhead in percent in free order, by FastSA with the paper's settings and by `auto`, on the same graphs and within the
same {paper_limits} s. The paper's mean of 23 networks in PyTorch, where each node costs 1, is 7 % at 50 % of the peak
and 18 % at 25 %. Here, costs are floating-point operations, so cheap nodes are also cheap to recompute. The mean is the
geometric mean of cost, over the networks that both solved.

{paper}

## Solvers

A solver has the best schedule of an instance if no other solver has one with less overhead. The primal integral is that
of Berthold (2013) in percent of the time limit: 0 means the best known schedule at once, and 100 none at the end. The
gap is to the lower bound that the solver itself proved. Means are over the instances at the same limit for which some
solver has a schedule.

{solvers}

{environment}
"""


@dataclass(frozen=True)
class Known:
    """What is known of an instance. Overheads are in percent; infinite where nobody has a schedule."""

    overhead_percent: float
    solver: str
    found_after_s: str
    bound_percent: float

    @property
    def gap_percent(self) -> float:
        return 100 * ((100 + self.overhead_percent) / (100 + self.bound_percent) - 1)


def solver_of(name: str) -> Solver:
    """A solver by the name that its rows have."""
    return Fastsa.paper() if name == AS_PUBLISHED else get_solver(name)


def solve_all(
    folder: Path,
    entries: Iterable[Entry],
    *,
    solvers: Sequence[str],
    budgets: Sequence[int],
    orders: Sequence[str],
    time_limit_s: float,
    path: Path = RESULTS,
) -> list[Row]:
    """Runs solvers on the instances that the table lacks; keeps schedules in the folder, and gives all rows."""
    points = [
        dict(zip(KEY, (entry.name, budget.percent, order, solver, time_limit_s), strict=True))
        for entry in entries
        for budget, order, solver in product(entry.budgets, orders, solvers)
        if budget.percent in budgets
    ]
    (folder / "schedules").mkdir(exist_ok=True)
    settings = {"folder": str(folder.resolve()), "entries": {entry.name: _brief(entry) for entry in entries}}
    return run_apart("experiments.benchmark.results", points, path, COLUMNS, settings=settings)


def _brief(entry: Entry) -> dict[str, Any]:
    return {"file": entry.file, "digest": entry.digest, "bytes": {str(one.percent): one.bytes for one in entry.budgets}}


def compute(point: Point) -> dict[str, Any]:
    """Runs one solver on one instance."""
    folder, brief = Path(point["folder"]), point["entries"][point["graph"]]
    graph = load_graph(folder / brief["file"])
    curve: list[tuple[float, int]] = []
    solution = solve(
        graph, brief["bytes"][str(point["budget_percent"])], solver=solver_of(point["solver"]), order=point["order"],
        time_limit_s=point["time_limit_s"], on_progress=lambda update: curve.append((update.time_s, update.cost)),
    )  # fmt: skip
    bound = solution.cost_lower_bound if solution.bound_order in ("free", point["order"]) else graph.baseline_cost
    row = {
        "digest": brief["digest"],
        "nodes": len(graph.nodes),
        "status": str(solution.status),
        "bound_percent": 100 * (bound / graph.baseline_cost - 1),
        "seconds": solution.solve_time_s,
        "inverse_cost_s": 0.0,
        "load_average": round(os.getloadavg()[0], 1),
    }
    if solution.simulation is None:
        return row
    cost = solution.simulation.cost
    curve.append((solution.solve_time_s, cost))
    path = folder / "schedules" / f"{'-'.join(str(point[key]) for key in KEY[:4])}.json".replace(" ", "_")
    save_solution(solution, graph, path)
    return {
        **row,
        "overhead_percent": 100 * solution.simulation.overhead,
        "found_after_s": min(time_s for time_s, known in curve if known <= cost),
        "inverse_cost_s": inverse_cost_s(curve, point["time_limit_s"], graph.baseline_cost),
    }


def inverse_cost_s(curve: Iterable[tuple[float, int]], time_limit_s: float, baseline_cost: int) -> float:
    """Integrates baseline cost over best cost until the limit, 0 before the first; `curve` is [(seconds, cost)]."""
    total = inverse = since_s = 0.0
    for time_s, cost in sorted(curve):
        until_s = min(time_s, time_limit_s)
        total += inverse * (until_s - since_s)
        inverse, since_s = max(inverse, baseline_cost / cost if cost else 1.0), until_s
    return total + inverse * (time_limit_s - since_s)


def primal_integral_percent(row: Row, known: Known) -> float:
    """The mean distance, over the time limit, of a run's best cost to the best known, over the former, in percent."""
    limit_s = float(row["time_limit_s"])
    return 100 * (1 - (1 + known.overhead_percent / 100) * float(row["inverse_cost_s"] or 0) / limit_s)


def known_of(rows: Iterable[Row], digest: str, budget_percent: int, order: str) -> Known:
    """What rows say of an instance. What holds in fixed order is also a schedule of free order, and a bound of free
    order also holds in fixed."""
    here = [row for row in rows if row["digest"] == digest and int(row["budget_percent"]) == budget_percent]
    found = [row for row in here if row["overhead_percent"] and (order == "free" or row["order"] == "fixed")]
    bounds = [row for row in here if row["bound_percent"] and (order == "fixed" or row["order"] == "free")]
    bound = max((float(row["bound_percent"]) for row in bounds), default=0.0)
    if not found:
        return Known(float("inf"), "", "", bound)
    best = min(found, key=lambda row: (float(row["overhead_percent"]), float(row["found_after_s"] or "inf")))
    return Known(float(best["overhead_percent"]), best["solver"], best["found_after_s"], bound)


def page() -> str:
    """The tables in markdown."""
    rows = read_rows(RESULTS)
    limits = sorted({float(row["time_limit_s"]) for row in rows if row["solver"] == AS_PUBLISHED})
    return _PAGE.format(
        equal=f"{_EQUAL_PERCENT:.4f}",
        state=state_table(rows),
        best=best_table(rows),
        paper_limits=", ".join(f"{limit:g}" for limit in limits),
        paper=paper_table(rows),
        solvers=solver_table(rows),
        environment=made_with(rows),
    )


def best_table(rows: Sequence[Row]) -> str:
    lines = []
    for graph, digest, nodes, percent, order in _instances(rows):
        known = known_of(rows, digest, percent, order)
        line = [graph, nodes, percent, order]
        if known.overhead_percent == float("inf"):
            lines.append([*line, "impossible" if _is_impossible(rows, digest, percent, order) else "none known"])
            continue
        bound = f"{known.bound_percent:.4f}" if known.bound_percent > 0 else ""
        after = f"{float(known.found_after_s):.1f}" if known.found_after_s else ""
        lines.append([*line, f"{known.overhead_percent:.4f}", bound, f"{known.gap_percent:.4f}", known.solver, after])
    headers = (
        "graph",
        "nodes",
        "budget, %",
        "order",
        "overhead, %",
        "lower bound, %",
        "gap, %",
        "found by",
        "after, s",
    )
    return tabulate(lines, headers, tablefmt="github", disable_numparse=True)


def state_table(rows: Sequence[Row]) -> str:
    """One line an order: how many instances are proved, nearly proved, open, impossible, and who has the best."""
    lines = []
    for order in ORDERS:
        here = [(known_of(rows, key[1], key[3], order), key) for key in _instances(rows) if key[4] == order]
        found = [known for known, _ in here if known.overhead_percent < float("inf")]
        impossible = sum(_is_impossible(rows, key[1], key[3], order) for known, key in here if known not in found)
        proved = sum(known.gap_percent <= _EQUAL_PERCENT for known in found)
        near = sum(_EQUAL_PERCENT < known.gap_percent <= 1 for known in found)
        holders = ", ".join(
            f"{solver} {count}" for solver, count in Counter(each.solver for each in found).most_common()
        )
        open_ones = len(here) - len(found) - impossible
        lines.append([order, len(here), proved, near, len(found) - proved - near, impossible, open_ones, holders])
    headers = (
        "order",
        "instances",
        "proved",
        "gap to 1 %",
        "gap above 1 %",
        "impossible",
        "none known",
        "best known by",
    )
    return tabulate(lines, headers, tablefmt="github", disable_numparse=True)


def _instances(rows: Sequence[Row]) -> list[tuple[str, str, int, int, str]]:
    """Graph, digest, nodes, percent and order of each instance, the smallest graphs and the largest budgets first."""
    found = {(row["graph"], row["digest"], int(row["nodes"]), int(row["budget_percent"]), row["order"]) for row in rows}
    return sorted(found, key=lambda key: (key[2], key[0], -key[3], key[4]))


def _is_impossible(rows: Sequence[Row], digest: str, percent: int, order: str) -> bool:
    return any(row["status"] == "INFEASIBLE" for row in rows if _is_of(row, digest, percent, order))


def _is_of(row: Row, digest: str, percent: int, order: str) -> bool:
    return (row["digest"], int(row["budget_percent"]), row["order"]) == (digest, percent, order)


def paper_table(rows: Sequence[Row]) -> str:
    """One line a network that FastSA as published ran on, and the means; both solvers at its time limit."""
    runs = {
        (row["graph"], row["budget_percent"], row["solver"], row["order"], row["time_limit_s"]): row for row in rows
    }
    published = [key for key in runs if key[2] == AS_PUBLISHED]
    networks = dict.fromkeys((graph, limit) for graph, *_, limit in published)
    budgets = sorted({int(key[1]) for key in published}, reverse=True)
    columns = [(str(budget), solver) for budget in budgets for solver in (AS_PUBLISHED, "auto")]
    lines, both = [], defaultdict(list)
    for graph, limit in networks:
        found = [runs.get((graph, budget, solver, "free", limit)) for budget, solver in columns]
        some = next(row for row in found if row is not None)
        lines.append([graph, some["nodes"], *(_overhead(row) for row in found)])
        for budget, pair in zip(budgets, zip(found[::2], found[1::2], strict=True), strict=True):
            if all(row is not None and row["overhead_percent"] for row in pair):
                both[budget].append([1 + float(row["overhead_percent"]) / 100 for row in pair])
    means = [
        f"{100 * (geometric_mean(costs) - 1):.2f} ({len(costs)})" if costs else ""
        for budget in budgets
        for costs in (list(zip(*both[budget], strict=True)) or [(), ()])
    ]
    headers = ("graph", "nodes", *(f"{solver}, {budget} %" for budget, solver in columns))
    return tabulate([*lines, ["mean (networks)", "", *means]], headers, tablefmt="github", disable_numparse=True)


def _overhead(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{float(row['overhead_percent']):.2f}" if row["overhead_percent"] else row["status"].lower()


def solver_table(rows: Sequence[Row]) -> str:
    """One line a solver, order and time limit."""
    lines = []
    for (order, limit, solver), group in groupby(sorted(rows, key=_run_key), key=_run_key):
        runs = [(row, known_of(rows, row["digest"], int(row["budget_percent"]), order)) for row in group]
        runs = [(row, known) for row, known in runs if known.overhead_percent < float("inf")]
        found = [(row, known) for row, known in runs if row["overhead_percent"]]
        best = [
            row for row, known in found if float(row["overhead_percent"]) <= known.overhead_percent + _EQUAL_PERCENT
        ]
        gaps = [(100 + float(row["overhead_percent"])) / (100 + float(row["bound_percent"] or 0)) for row, _ in found]
        integrals = [primal_integral_percent(row, known) for row, known in runs if row["seconds"]]
        lines.append(
            [
                solver,
                order,
                f"{limit:g}" if limit else "",
                len(runs),
                len(found),
                len(best),
                f"{mean(float(row['overhead_percent']) for row, _ in found):.3f}" if found else "",
                f"{mean(integrals):.3f}" if integrals else "",
                f"{100 * (mean(gaps) - 1):.3f}" if gaps else "",
            ]
        )
    headers = ("solver", "order", "limit, s", "instances", "solved", "best", "mean overhead, %")
    return tabulate(
        lines, (*headers, "mean primal integral, %", "mean gap, %"), tablefmt="github", disable_numparse=True
    )


def _run_key(row: Row) -> tuple[str, float, str]:
    return row["order"], float(row["time_limit_s"] or 0), row["solver"]
