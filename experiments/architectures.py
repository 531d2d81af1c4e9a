"""Every keras.applications architecture at batch 2: operations, nodes, and seconds to extract, solve and emit.

    python -m experiments.architectures [--only NAME ...] [--budget 70%] [--solver auto] [--solve-seconds 10]

Where weights and gradients are most of a step's peak, no schedule keeps to 70 % of it: the row then tells the least
budget that one was found for and the bound below which none exists, and a second row has the same architecture at
images twice as large.

Seconds are CPU seconds of the process (wall-clock ones for the solver, which has processes of its own), so that
they hold on a machine that does other work too. Each model runs in a process of its own. Models whose step needs more
than --memory-gib are noted, not solved. The emitted step itself is not run; give --run to run it once beside the
stock step and record both losses.
"""

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from experiments.running import RESULTS_FOLDER, Point, Row, made_with, read_rows, run_apart

RESULTS = RESULTS_FOLDER / "architectures.csv"
SHOWN = (
    "name", "input", "ops", "nodes", "stock_mib", "trace_s", "extract_s", "solve_s", "emit_s", "budget",
    "least_possible", "overhead", "copied_ops", "status",
)  # fmt: skip
COLUMNS = (*SHOWN, "values", "resident_mib", "solver", "planned_mib", "control_edges", "stock_loss", "loss", "seed")
_OPEN_SHAPE = (224, 224, 3)  # for those that leave it open


def names() -> list[str]:
    """All architectures, from the constructors that keras.applications exports."""
    import keras

    return sorted(
        name for name in dir(keras.applications) if name[0].isupper() and callable(getattr(keras.applications, name))
    )


def points(only: Sequence[str] | None = None) -> list[Point]:
    return [{"name": name} for name in only or names()]


def compute(point: Point) -> list[dict[str, Any]]:
    """The rows of an architecture: the second only where the first misses the budget.

    The point also says `batch`, `budget`, `solver`, `solve_seconds`, `memory_gib` and whether to `run` the steps.
    """
    import keras

    make = partial(getattr(keras.applications, point["name"]), weights=None, classifier_activation=None)
    keras.utils.set_random_seed(0)
    model = make()
    if None in model.inputs[0].shape[1:]:
        model = make(input_shape=_OPEN_SHAPE)
    rows = [measure_model(model, point)]
    if rows[0]["budget"] != point["budget"]:
        size, _, channels = model.inputs[0].shape[1:]
        larger = make(input_shape=(2 * size, 2 * size, channels))
        # Layers with weights for each pixel take ever more of them.
        if larger.count_params() == model.count_params():
            rows.append(measure_model(larger, point))
    return rows


def measure_model(model: Any, point: Point) -> dict[str, Any]:
    """One row of the table."""
    import keras
    import tensorflow as tf

    from checkmate_tf.executors.graph.writer import arrange, emit
    from checkmate_tf.simulator import find_peak_bound, simulate_stock
    from checkmate_tf.solvers import solve
    from checkmate_tf.solvers.portfolio.minimum_memory import minimum_memory
    from checkmate_tf.tracing.extraction import extract

    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    variables = [variable.value for variable in model.trainable_variables]

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True)) + sum(model.losses)
        return loss, tape.gradient(loss, variables)

    shape = (point["batch"], *model.inputs[0].shape[1:])
    specs = tf.TensorSpec(shape), tf.TensorSpec((point["batch"],), tf.int32)
    started = time.process_time()
    function = tf.function(step, autograph=False).get_concrete_function(*specs)
    traced = time.process_time()
    training_graph = extract(function, name=model.name)
    extracted = time.process_time()
    graph = training_graph.graph
    peak_bytes = simulate_stock(graph).peak_bytes
    row = {
        "input": "x".join(map(str, shape)),
        "ops": len(training_graph.ops.ops),
        "nodes": len(graph.nodes),
        "values": len(graph.values),
        "stock_mib": round(peak_bytes / 2**20, 1),
        "resident_mib": round(graph.resident_bytes / 2**20, 1),
        "trace_s": round(traced - started, 2),
        "extract_s": round(extracted - traced, 2),
        "budget": point["budget"],
        "seed": 0,
    }
    if peak_bytes > point["memory_gib"] * 2**30:
        return row | {"status": f"needs more than {point['memory_gib']} GiB"}
    started = time.perf_counter()
    solution = solve(graph, point["budget"], solver=point["solver"], time_limit_s=point["solve_seconds"])
    if solution.schedule is None:
        least = minimum_memory(graph, time_limit_s=point["solve_seconds"])
        solution = least.solution
        row |= {"budget": f"{least.budget_bytes / peak_bytes:.1%}"}
        row |= {"least_possible": f"{max(least.lower_bound_bytes, find_peak_bound(graph).peak_bytes) / peak_bytes:.1%}"}
    solved = time.perf_counter()
    started_emission = time.process_time()
    emitted = emit(training_graph, arrange(training_graph, solution.schedule))
    row |= {
        "solve_s": round(solved - started, 2),
        "emit_s": round(time.process_time() - started_emission, 2),
        "status": str(solution.status),
        "solver": solution.solver,
        "planned_mib": round(solution.simulation.peak_bytes / 2**20, 1),
        "overhead": f"{solution.simulation.overhead:.2%}",
        "copied_ops": emitted.num_copied_ops,
        "control_edges": emitted.num_control_edges,
    }
    if point["run"]:
        batch = tf.random.normal(shape, seed=0), tf.zeros((point["batch"],), tf.int32)
        kept = [variable.numpy() for variable in model.variables]
        stock = float(function(*batch)[0])
        for variable, value in zip(model.variables, kept, strict=True):
            variable.assign(value)
        row |= {"stock_loss": stock, "loss": float(emitted.function(*batch)[0])}
    return row


def table(rows: Sequence[Row]) -> str:
    """A line a row; the error of a process that failed stands in the place of the status."""
    from tabulate import tabulate

    lines = [
        [row[column] or (row["error"] if column == "status" else "") for column in SHOWN]
        for row in sorted(rows, key=lambda row: row["name"])
    ]
    return tabulate(lines, headers=SHOWN, tablefmt="github")


def page() -> str:
    """The page of the results that are kept."""
    rows = read_rows(RESULTS)
    return _PAGE.format(table=table(rows), made_with=made_with(rows))


_PAGE = """# Architectures of keras.applications

Written by `python -m experiments.pages architectures.md` from `architectures.csv`, which `python -m
experiments.architectures` measures: the times to trace a training step, extract its graph, solve it for a budget, and
emit the new step. The solver's seconds are by the clock, and all others are CPU seconds of the process. The budget is a
share of the stock step's peak, which is in MiB.

If weights and gradients are most of the peak, there may be no schedule within 70 %. The row then shows the least budget
for which a schedule was found, and a lower bound on it. If the number of weights allows it, a second row has images
twice as large.

{table}

{made_with}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="these architectures instead of all")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--budget", default="70%")
    parser.add_argument("--solver", default="auto")
    parser.add_argument("--solve-seconds", type=float, default=10.0)
    parser.add_argument("--memory-gib", type=float, default=16.0)
    parser.add_argument("--run", action="store_true", help="run the stock and the emitted step once")
    parser.add_argument("--output", type=Path, default=RESULTS)
    settings = vars(parser.parse_args())
    wanted, path = points(settings.pop("only")), settings.pop("output")
    print(table(run_apart("experiments.architectures", wanted, path, COLUMNS, settings=settings)))


if __name__ == "__main__":
    main()
