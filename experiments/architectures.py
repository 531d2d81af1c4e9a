"""Every keras.applications architecture at batch 2: operations, nodes, and seconds to extract, solve and emit.

    python -m experiments.architectures [--only NAME ...] [--budget 70%] [--solver auto] [--solve-seconds 10]

Where weights and gradients are most of a step's peak, no schedule keeps to 70 % of it: the row then tells the least
budget that one was found for and the bound below which none exists, and a second row has the same architecture at
images twice as large.

Seconds are CPU seconds of the process (wall-clock ones for the solver, which has processes of its own), so that
they hold on a machine that does other work too. Each model runs in a process of its own; one that is in the table
already is not run again, so that the command can be stopped and started at will. Models whose step needs more
than --memory-gib are noted, not solved. The emitted step itself is not run; give --run to run it once beside the
stock step and record both losses.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from functools import partial
from typing import Any

from experiments.running import RESULTS_FOLDER, write_text

RESULTS = RESULTS_FOLDER / "architectures.json"
_OPEN_SHAPE = (224, 224, 3)  # for those that leave it open


def names() -> list[str]:
    """All architectures, from the constructors that keras.applications exports."""
    import keras

    return sorted(
        name for name in dir(keras.applications) if name[0].isupper() and callable(getattr(keras.applications, name))
    )


def measure(name: str, options: argparse.Namespace) -> list[dict]:
    """The rows of an architecture, measured in this process: the second only where the first misses the budget."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras

    make = partial(getattr(keras.applications, name), weights=None, classifier_activation=None)
    keras.utils.set_random_seed(0)
    model = make()
    if None in model.inputs[0].shape[1:]:
        model = make(input_shape=_OPEN_SHAPE)
    rows = [{"name": name, **measure_model(model, options)}]
    if rows[0]["budget"] != options.budget:
        size, _, channels = model.inputs[0].shape[1:]
        larger = make(input_shape=(2 * size, 2 * size, channels))
        # Layers with weights for each pixel take ever more of them.
        if larger.count_params() == model.count_params():
            rows.append({"name": name, **measure_model(larger, options)})
    return rows


def measure_model(model: Any, options: argparse.Namespace) -> dict:
    """One row of the table."""
    import keras
    import tensorflow as tf

    from checkmate_tf.emission.writer import emit
    from checkmate_tf.simulator import least_step, simulate_stock
    from checkmate_tf.solvers import solve
    from checkmate_tf.solvers.portfolio.minimum_memory import minimum_memory
    from checkmate_tf.tracing.extraction import extract

    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    variables = [variable.value for variable in model.trainable_variables]

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True)) + sum(model.losses)
        return loss, tape.gradient(loss, variables)

    shape = (options.batch, *model.inputs[0].shape[1:])
    specs = tf.TensorSpec(shape), tf.TensorSpec((options.batch,), tf.int32)
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
        "budget": options.budget,
    }
    if peak_bytes > options.memory_gib * 2**30:
        return row | {"status": f"needs more than {options.memory_gib} GiB"}
    started = time.perf_counter()
    solution = solve(graph, options.budget, solver=options.solver, time_limit_s=options.solve_seconds)
    if solution.schedule is None:
        least = minimum_memory(graph, time_limit_s=options.solve_seconds)
        solution = least.solution
        row |= {"budget": f"{least.budget_bytes / peak_bytes:.1%}"}
        row |= {"least_possible": f"{max(least.lower_bound_bytes, least_step(graph).peak_bytes) / peak_bytes:.1%}"}
    solved = time.perf_counter()
    started_emission = time.process_time()
    emitted = emit(training_graph, solution.schedule)
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
    if options.run:
        batch = tf.random.normal(shape, seed=0), tf.zeros((options.batch,), tf.int32)
        kept = [variable.numpy() for variable in model.variables]
        stock = float(function(*batch)[0])
        for variable, value in zip(model.variables, kept, strict=True):
            variable.assign(value)
        row |= {"stock_loss": stock, "loss": float(emitted.function(*batch)[0])}
    return row


def machine() -> dict:
    from importlib.metadata import version

    versions = {package: version(package) for package in ("tensorflow", "keras", "numpy", "ortools")}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
        "seed": 0,
        **versions,
    }


def table(rows: list[dict]) -> str:
    from tabulate import tabulate

    columns = ["name", "input", "ops", "nodes", "stock_mib", "trace_s", "extract_s", "solve_s", "emit_s", "budget"]
    columns += ["least_possible", "overhead", "copied_ops", "status"]
    return tabulate([[row.get(column, "") for column in columns] for row in rows], headers=columns, tablefmt="github")


def page() -> str:
    """The page of the results that are kept."""
    return table(json.loads(RESULTS.read_text())["rows"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="these architectures instead of all")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--budget", default="70%")
    parser.add_argument("--solver", default="auto")
    parser.add_argument("--solve-seconds", type=float, default=10.0)
    parser.add_argument("--memory-gib", type=float, default=16.0)
    parser.add_argument("--run", action="store_true", help="run the stock and the emitted step once")
    parser.add_argument("--again", action="store_true", help="measure what is in the table again")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options)))
        return
    rows = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    for name in options.only or names():
        if not options.again and any(row["name"] == name for row in rows):
            continue
        command = [sys.executable, "-m", "experiments.architectures", "--one", name, *sys.argv[1:]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1][:200]
            print(f"{name} failed: {reason}", file=sys.stderr)
            new = [{"name": name, "status": f"failed: {reason}"}]
        else:
            new = json.loads(done.stdout.strip().splitlines()[-1])
        rows = sorted([row for row in rows if row["name"] != name] + new, key=lambda row: row["name"])
        write_text(RESULTS, json.dumps({**machine(), "rows": rows}, indent=1) + "\n")
        write_text(RESULTS.with_suffix(".md"), page())
        print(table(new), flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
