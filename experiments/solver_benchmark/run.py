"""Every solver on every graph, budget and order mode; one JSON file a run, so that a stopped benchmark goes on.

    python -m experiments.solver_benchmark.run --time-limit 10 --jobs 1 --solvers auto,stage_annealing

Each run is a process of its own. Its file holds the result, the anytime curve, CPU and wall time, machine and versions.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Order
from checkmate_tf.serialization import load_graph
from checkmate_tf.solvers import SOLVER_NAMES, solve
from experiments.layered_graphs import layered_graph

ROOT = Path(__file__).resolve().parents[2]
LAYER_GRAPHS = ROOT / "experiments" / "graphs"
RESULTS = ROOT / "experiments" / "results" / "solver_benchmark"
LAYERED_SIZES = (100, 250, 500, 1000, 5000)
BUDGETS_PERCENT = (90, 80, 70, 50, 30)
LEFT_OUT = ("exhaustive", "retain_all")


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
    def graph_name(self) -> str:
        return Path(self.graph).stem

    @property
    def path(self) -> Path:
        limit = f"{self.time_limit_s:g}s"
        return RESULTS / f"{self.graph_name}.{self.budget_percent}.{self.order}.{self.solver}.{limit}.{self.seed}.json"


def load(name: str) -> Graph:
    """The graph of a spec."""
    if name.startswith("layered-"):
        return layered_graph(int(name.removeprefix("layered-")), seed=0)
    return load_graph(name)


def measure(spec: Spec) -> dict:
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
        **asdict(spec),
        "graph": spec.graph_name,
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
        "stats": dict(solution.stats),
        "machine": machine(),
    }


def machine() -> dict:
    """Where and with what the run was made."""
    load_average = os.getloadavg()[0]
    return {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_average": round(load_average, 1),
        "python": platform.python_version(),
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip(),
        **{name: version(name) for name in ("numpy", "numba", "highspy", "ortools")},
    }


def specs(arguments: argparse.Namespace) -> Iterator[Spec]:
    """The runs asked for, those without a result yet."""
    for graph, budget, order, solver in product(
        arguments.graphs, arguments.budgets, arguments.orders, arguments.solvers
    ):
        spec = Spec(graph, solver, budget, order, arguments.time_limit, arguments.seed)
        if not spec.path.exists():
            yield spec


def run_apart(spec: Spec) -> None:
    """Runs one spec in its own process; a failure or an overrun is recorded too."""
    command = [sys.executable, "-m", "experiments.solver_benchmark.run", "--one", json.dumps(asdict(spec))]
    started = time.perf_counter()
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=3 * spec.time_limit_s + 120, check=False
        )
        result = json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr.splitlines()[-1:]}
    except subprocess.TimeoutExpired:
        result = {"error": "overran three times its time limit"}
    result = {**asdict(spec), "graph": spec.graph_name, **result}
    result["command_s"] = round(time.perf_counter() - started, 2)
    spec.path.write_text(json.dumps(result, indent=1) + "\n")
    overhead = result.get("overhead_percent")
    print(spec.path.stem, result.get("status", result.get("error")), overhead, result.get("bound_percent"), flush=True)


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
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.one:
        print(json.dumps(measure(Spec(**json.loads(chosen.one)))))
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(chosen.jobs) as pool:
        list(pool.map(run_apart, specs(chosen)))


if __name__ == "__main__":
    main()
