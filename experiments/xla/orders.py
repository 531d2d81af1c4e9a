"""Peaks predicted and compiled in either order that XLA:CPU can run a step in: for its threads, the default, or memory.

    python -m experiments.xla.orders [--model NAME ...] [--order NAME ...]

The stock step, and one schedule for each share of what it is predicted to hold. Predicted peaks are those of the
training graph, compiled ones those of XLA's buffer assignment; nothing runs, and no plan is corrected by what was
compiled. Rows that are in the results are not measured again.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from checkmate_tf.executors.xla.step import XlaStep
from checkmate_tf.profiling.costs import RooflineCosts
from checkmate_tf.simulator import simulate_stock
from checkmate_tf.solvers import solve
from checkmate_tf.training.batches import BatchSpec
from checkmate_tf.training.model_variables import build_for
from checkmate_tf.training.traced_model import TracedModel
from experiments.peers.models import MODELS, build
from experiments.running import RESULTS_FOLDER, Point, all_columns, computed_apart, environment_cells, run_rows
from experiments.xla.rows import table_of

RESULTS = RESULTS_FOLDER / "xla_orders.csv"
FLAGS = {"threads": "", "memory": "--xla_cpu_enable_concurrency_optimized_scheduler=false"}
SHARES = (0.6, 0.4)
COLUMNS = ("model", "order", "share", "predicted_bytes", "compiled_bytes", "resident_bytes", "overhead")
table = table_of(COLUMNS)
_TIME_LIMIT_S = 20.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--order", nargs="*", default=list(FLAGS), choices=FLAGS)
    options = parser.parse_args()
    wanted = points(options.model, options.order)
    print(table(run_rows(wanted, measure, RESULTS, all_columns(COLUMNS), digits=6)))


def points(models: Sequence[str] = tuple(MODELS), orders: Sequence[str] = tuple(FLAGS)) -> list[Point]:
    return [{"model": name, "order": order} for order in orders for name in models]


def measure(point: Point) -> list[dict[str, Any]]:
    """Rows, from a process of its own: XLA reads its flags once."""
    found = computed_apart("experiments.xla.orders:compute", point, {"XLA_FLAGS": FLAGS[point["order"]]})
    return [{**row, **environment_cells()} for row in found]


def compute(point: Point) -> list[dict[str, Any]]:
    step = make_step(point["model"])
    graph, resident_bytes = step.graph, step.graph.resident_bytes
    stock_bytes = simulate_stock(graph).peak_bytes
    rows: list[dict[str, Any]] = [
        {"share": "stock", "predicted_bytes": stock_bytes, "compiled_bytes": step.measure(step.stock, 0).peak_bytes}
    ]
    for share in SHARES:
        budget_bytes = resident_bytes + int(share * (stock_bytes - resident_bytes))
        solution = solve(graph, budget_bytes, time_limit_s=_TIME_LIMIT_S)
        if solution.schedule is None:
            rows.append({"share": share, "error": f"no schedule within {budget_bytes} bytes in {_TIME_LIMIT_S:g} s"})
            continue
        emitted = step.emit(step.arrange(solution.schedule), "chain")
        simulation = solution.scheduled.simulation
        row = {"share": share, "predicted_bytes": simulation.peak_bytes, "overhead": simulation.overhead}
        rows.append(row | {"compiled_bytes": step.measure(emitted, 0).peak_bytes})
    return [row | {"resident_bytes": resident_bytes} for row in rows]


def make_step(name: str) -> XlaStep:
    """The step of a model, compiled, with roofline costs."""
    model, data = build(name, "stock")
    model.compile(model.optimizer, model.loss, jit_compile=True)
    spec = BatchSpec.of(data)
    build_for(model, spec)
    return TracedModel.of(model, spec).make_xla_step().add_costs(RooflineCosts(compiled=True))


if __name__ == "__main__":
    main()
