"""Every keras.applications architecture at batch 2: operations, nodes, and seconds to extract, solve and emit.

    python experiments/architectures.py [--only NAME ...] [--budget 70%] [--solver auto] [--solve-seconds 20]

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
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "architectures"
# Where weights and their gradients are most of the peak, 70 % may be less than any schedule needs.
LARGER_BUDGETS = ("80%", "90%", "100%")


def names() -> list[str]:
    """All architectures, from the constructors that keras.applications exports."""
    import keras

    return sorted(
        name for name in dir(keras.applications) if name[0].isupper() and callable(getattr(keras.applications, name))
    )


def measure(name: str, options: argparse.Namespace) -> dict:
    """One row of the table, measured in this process."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import tensorflow as tf

    from checkmate_tf.emission import emit
    from checkmate_tf.extraction import extract
    from checkmate_tf.simulator import retain_all_schedule, simulate
    from checkmate_tf.solvers import solve

    keras.utils.set_random_seed(0)
    model = getattr(keras.applications, name)(weights=None, classifier_activation=None)
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
    training_graph = extract(function, name=name)
    extracted = time.process_time()
    graph = training_graph.graph
    peak_bytes = simulate(graph, retain_all_schedule(graph)).peak_bytes
    row = {
        "name": name,
        "input": list(shape),
        "ops": len(training_graph.ops.ops),
        "nodes": len(graph.nodes),
        "values": len(graph.values),
        "stock_peak_bytes": peak_bytes,
        "resident_bytes": graph.resident_bytes,
        "trace_s": round(traced - started, 2),
        "extract_s": round(extracted - traced, 2),
    }
    if peak_bytes > options.memory_gib * 2**30:
        return row | {"status": f"needs more than {options.memory_gib} GiB"}
    started = time.perf_counter()
    for budget in (options.budget, *LARGER_BUDGETS):
        solution = solve(graph, budget, solver=options.solver, time_limit_s=options.solve_seconds)
        if solution.schedule is not None:
            break
    solved = time.perf_counter()
    row |= {"budget": budget, "solve_s": round(solved - started, 2), "status": str(solution.status)}
    row |= {"solver": solution.solver}
    started = time.process_time()
    emitted = emit(training_graph, solution.schedule)
    row |= {
        "emit_s": round(time.process_time() - started, 2),
        "planned_peak_bytes": solution.simulation.peak_bytes,
        "overhead": round(solution.simulation.overhead, 4),
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

    columns = ["name", "ops", "nodes", "trace_s", "extract_s", "solve_s", "emit_s", "budget", "overhead"]
    columns += ["copied_ops", "status"]
    return tabulate([[row.get(column, "") for column in columns] for row in rows], headers=columns, tablefmt="github")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="these architectures instead of all")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--budget", default="70%")
    parser.add_argument("--solver", default="auto")
    parser.add_argument("--solve-seconds", type=float, default=20.0)
    parser.add_argument("--memory-gib", type=float, default=16.0)
    parser.add_argument("--run", action="store_true", help="run the stock and the emitted step once")
    parser.add_argument("--again", action="store_true", help="measure what is in the table again")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options)))
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "table.json"
    saved = json.loads(path.read_text()) if path.exists() else {"rows": []}
    rows = {row["name"]: row for row in saved["rows"]}
    for name in options.only or names():
        if name in rows and not options.again:
            continue
        done = subprocess.run(
            [sys.executable, __file__, "--one", name, *sys.argv[1:]], capture_output=True, text=True, check=False
        )
        if done.returncode:
            print(f"{name} failed: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
            rows[name] = {"name": name, "status": "failed: " + done.stderr.strip().splitlines()[-1][:200]}
        else:
            rows[name] = json.loads(done.stdout.strip().splitlines()[-1])
        ordered = [rows[key] for key in sorted(rows)]
        path.write_text(json.dumps({**machine(), "budget": options.budget, "rows": ordered}, indent=1) + "\n")
        (RESULTS / "table.md").write_text(table(ordered) + "\n")
        print(table([rows[name]]), flush=True)
    print(table([rows[key] for key in sorted(rows)]))


if __name__ == "__main__":
    main()
