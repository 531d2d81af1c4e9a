"""What the stock step takes in either order that XLA:CPU can run it in: for its threads, the default, or for memory.

    python -m experiments.xla.orders [--model NAME ...]

Predicted and compiled peaks are those of planning: of the training graph, and of XLA's buffer assignment. Nothing runs.
Rows that are in the results are not measured again.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

from checkmate_tf.simulator import simulate_stock
from checkmate_tf.tracing.extraction import extract
from checkmate_tf.training.batches import BatchSpec
from checkmate_tf.training.installed_step import count_resident
from checkmate_tf.training.step_parts import build_for, complete_step, make_gradient_part
from checkmate_tf.xla.step import XlaStep
from experiments.peers.models import MODELS, build
from experiments.running import RESULTS_FOLDER, Point, all_columns, computed_apart, environment_cells, run_rows
from experiments.xla.rows import table_of

RESULTS = RESULTS_FOLDER / "xla_orders.csv"
FLAGS = {"threads": "", "memory": "--xla_cpu_enable_concurrency_optimized_scheduler=false"}
COLUMNS = ("model", "order", "predicted_bytes", "compiled_bytes", "temporary_bytes")
table = table_of(COLUMNS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=list(MODELS), choices=MODELS)
    print(table(run_rows(points(parser.parse_args().model), measure, RESULTS, all_columns(COLUMNS), digits=6)))


def points(models: Sequence[str] = tuple(MODELS)) -> list[Point]:
    return [{"model": name, "order": order} for name in models for order in FLAGS]


def measure(point: Point) -> dict[str, Any]:
    """A row, from a process of its own: XLA reads its flags once."""
    found = computed_apart("experiments.xla.orders:compute", point, {"XLA_FLAGS": FLAGS[point["order"]]})
    return {**found, **environment_cells()}


def compute(point: Point) -> dict[str, int]:
    model, data = build(point["model"], "stock")
    model.compile(model.optimizer, model.loss, jit_compile=True)
    spec = BatchSpec.of(data)
    build_for(model, spec)
    part = make_gradient_part(model)
    assert part is not None  # The models have no `train_step` of their own.
    concrete = part.trace(spec)
    resident = count_resident(model, spec, concrete)
    traced = extract(concrete, name=model.name, resident_bytes=resident.total)
    step = XlaStep.of(traced, partial(complete_step, part, spec), spec.flat, resident=resident)
    return {
        "predicted_bytes": simulate_stock(step.graph).peak_bytes,
        "compiled_bytes": step.stock_memory.peak_bytes,
        "temporary_bytes": step.stock_memory.temporary_bytes,
    }


if __name__ == "__main__":
    main()
