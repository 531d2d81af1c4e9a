"""Every solver on every graph, budget and order mode; a stopped benchmark goes on where it stopped.

    python -m experiments.solver_benchmark.run --time-limit 10 --jobs 1 --solvers auto,stage_annealing

Each run is a process of its own. Its row holds the result, CPU and wall time, machine and versions. The anytime
curve of the solvers named in CURVES, which the report draws, is a line of a second file: [seconds, cost, lower bound]
each time that cost or bound changed.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Order
from checkmate_tf.serialization import load_graph
from checkmate_tf.solvers import SOLVER_NAMES, solve
from experiments.layered_graphs import layered_graph
from experiments.running import RESULTS_FOLDER, ROOT, Point, environment_cells, read_lines, run_rows, write_lines

LAYER_GRAPHS = ROOT / "experiments" / "graphs"
RESULTS = RESULTS_FOLDER / "solver_benchmark.csv"
CURVES_PATH = RESULTS_FOLDER / "solver_benchmark_curves.jsonl"
CURVES = ("auto",)
LAYERED_SIZES = (100, 250, 500, 1000, 5000)
BUDGETS_PERCENT = (90, 80, 70, 50, 30)
LEFT_OUT = ("exhaustive", "retain_all")
KEY = ("graph", "solver", "budget_percent", "order", "time_limit_s", "seed")
COLUMNS = (
    *KEY, "num_nodes", "status", "error", "overhead_percent", "bound_percent", "bound_order", "solve_time_s", "cpu_s",
    "peak_resident_mb", "baseline_cost", "command_s", "load_average", "commit", "machine", "versions",
)  # fmt: skip


@dataclass(frozen=True)
class Spec:
    """One run. Args:
    graph: a path to a graph, or "layered-N" for a generated one.
    """

    graph: str
    solver: str
    budget_percent: int
    order: Order
    time_limit_s: float
    seed: int = 0

    @property
    def point(self) -> Point:
        """What names the run in the table: a graph is known by its name, wherever its file lies."""
        return {**asdict(self), "graph": Path(self.graph).stem}


def load(name: str) -> Graph:
    """The graph of a spec."""
    if name.startswith("layered-"):
        return layered_graph(int(name.removeprefix("layered-")), seed=0)
    return load_graph(name)


def measure(spec: Spec) -> dict[str, Any]:
    """Runs one spec in this process."""
    graph = load(spec.graph)
    curve = []

    def note(progress) -> None:
        point = [round(progress.time_s, 3), progress.cost, progress.cost_lower_bound]
        if not curve or curve[-1][1:] != point[1:]:
            curve.append(point)

    solution = solve(
        graph, f"{spec.budget_percent}%", solver=spec.solver, order=spec.order, time_limit_s=spec.time_limit_s,
        seed=spec.seed, on_progress=note,
    )  # fmt: skip
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "num_nodes": len(graph.nodes),
        "status": str(solution.status),
        "overhead_percent": None if solution.simulation is None else 100 * solution.simulation.overhead,
        "bound_percent": 100 * (solution.cost_lower_bound / graph.baseline_cost - 1),
        "bound_order": solution.bound_order,
        "solve_time_s": round(solution.solve_time_s, 3),
        "cpu_s": round(sum(one.ru_utime + one.ru_stime for one in usage), 2),
        "peak_resident_mb": max(one.ru_maxrss for one in usage) // 1024,
        "baseline_cost": graph.baseline_cost,
        "curve": curve[-200:],
        "load_average": round(os.getloadavg()[0], 1),
        **environment_cells(),
    }


def specs(arguments: argparse.Namespace) -> Iterator[Spec]:
    """The runs asked for."""
    for graph, budget, order, solver in product(
        arguments.graphs, arguments.budgets, arguments.orders, arguments.solvers
    ):
        yield Spec(graph, solver, budget, order, arguments.time_limit, arguments.seed)


def run_apart(spec: Spec) -> dict[str, Any]:
    """Runs one spec in its own process; a failure or an overrun is a result too."""
    command = [sys.executable, "-m", "experiments.solver_benchmark.run", "--one", json.dumps(asdict(spec))]
    started = time.perf_counter()
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=3 * spec.time_limit_s + 120, check=False
        )
        lines = done.stderr.splitlines() or [f"exit status {done.returncode}"]
        result = json.loads(done.stdout) if done.returncode == 0 else {"error": lines[-1]}
    except subprocess.TimeoutExpired:
        result = {"error": "overran three times its time limit"}
    result["command_s"] = round(time.perf_counter() - started, 2)
    overhead = result.get("overhead_percent")
    outcome = result.get("status", result.get("error"))
    print(*spec.point.values(), outcome, overhead, result.get("bound_percent"), flush=True)
    return result


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    layer_graphs = sorted(str(path) for path in LAYER_GRAPHS.glob("*.json"))
    parser.add_argument("--graphs", nargs="+", default=layer_graphs + [f"layered-{n}" for n in LAYERED_SIZES])
    parser.add_argument("--solvers", nargs="+", default=[n for n in SOLVER_NAMES if n not in LEFT_OUT])
    parser.add_argument("--budgets", nargs="+", type=int, default=list(BUDGETS_PERCENT))
    parser.add_argument("--orders", nargs="+", choices=("fixed", "free"), default=["fixed", "free"])
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the table; the curves lie beside it")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.one:
        print(json.dumps(measure(Spec(**json.loads(chosen.one)))))
        return
    by_point = {json.dumps(spec.point): spec for spec in specs(chosen)}
    curves_path = chosen.output.with_name(chosen.output.stem + "_curves.jsonl")

    def keep_curve(point: Point, result: dict[str, Any]) -> None:
        curve = result.pop("curve", None)
        if curve and point["solver"] in CURVES:
            others = [line for line in read_lines(curves_path) if {**line, **point} != line]
            write_lines(curves_path, [*others, point | {"curve": curve}])

    run_rows(
        [spec.point for spec in by_point.values()],
        lambda point: run_apart(by_point[json.dumps(point)]),
        chosen.output,
        COLUMNS,
        jobs=chosen.jobs,
        beforehand=keep_curve,
    )


if __name__ == "__main__":
    main()
