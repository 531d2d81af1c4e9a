"""The budget holds on each replica: allocator's peaks under MultiWorkerMirroredStrategy and MirroredStrategy.

    python -m experiments.keras_distributed [--share 0.4] [--output FILE.csv]

Two workers, processes that talk over loopback, train a chain of convolutions in a custom loop whose gradients
`rewrite_function` rewrote; each has an allocator of its own. Then `fit`'s step of the same model on two logical
devices of one process: they share an allocator, which is to keep within twice a replica's budget. oneDNN is on: the
CPU's allocator keeps statistics only then. Peaks are the highest of the last four of five steps, with what is resident.
"""

import argparse
import json
import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from experiments.running import RESULTS_FOLDER, Point, Row, computed_apart, run_apart

RESULTS = RESULTS_FOLDER / "keras_distributed.csv"
STRATEGIES = ("MultiWorkerMirroredStrategy", "MirroredStrategy")
COLUMNS = (
    "strategy", "share", "process", "stock_peak_bytes", "measured_peak_bytes", "budgets", "replica_budget_bytes",
    "replica_predicted_peak_bytes", "overhead",
)  # fmt: skip
BATCH_SIZE = 8  # of each replica


def points(share: float = 0.4) -> list[Point]:
    """The budget is a share of the stock replica's peak."""
    return [{"strategy": strategy, "share": share} for strategy in STRATEGIES]


def compute(point: Point) -> list[dict[str, Any]]:
    """A row for each process that trains."""
    if point["strategy"] == "MirroredStrategy":
        return [mirrored(point["share"])]
    ports = [_free_port() for _ in range(2)]
    parts = [{**point, "ports": ports, "number": number} for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda part: computed_apart("experiments.keras_distributed:worker", part), parts))


def table(rows: Sequence[Row]) -> str:
    """A line a process, in MiB."""
    from tabulate import tabulate

    sizes = ("stock_peak_bytes", "replica_budget_bytes", "replica_predicted_peak_bytes", "measured_peak_bytes")
    lines = [
        [row["strategy"], row["process"], f"{float(row['share']):.0%}"]
        + [f"{int(row[size]) / 2**20:.1f}" if row[size] else "" for size in sizes]
        + [row["budgets"], f"{float(row['overhead']):.1%}" if row["overhead"] else row["error"]]
        for row in rows
    ]
    headers = ["strategy", "process", "share", "stock", "budget of a replica", "predicted for it", "measured"]
    headers += ["budgets in the process", "overhead"]
    return tabulate(lines, headers, tablefmt="github", disable_numparse=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.4, help="the budget, as a share of the stock replica's peak")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    print(table(run_apart("experiments.keras_distributed", points(options.share), options.output, COLUMNS)))


def worker(point: Point) -> dict[str, Any]:
    """Peaks of one worker's step in the stock and in the rewritten custom loop."""
    import tensorflow as tf

    import checkmate_tf
    from experiments.keras_users.worker import train

    share, ports, number = point["share"], point["ports"], point["number"]
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": number}})
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    plans: list[Any] = []

    def rewrite(gradients: Any) -> Any:
        budget = int(share * peaks[0])
        rewritten = checkmate_tf.rewrite_function(
            gradients, budget=budget, options=checkmate_tf.Options(costs="flops"), time_limit_s=20
        )
        plans.append(rewritten.plan)
        return rewritten

    peaks: list[int] = []
    for change in (None, rewrite):
        seen: list[int] = []
        weights, _ = train(strategy, number, rewrite=change, make=conv_chain, observe=_observer(seen))
        resident = sum(weight.nbytes for weight in weights) + BATCH_SIZE * 4 * (96 * 96 * 3 + 10)
        peaks.append(resident + max(seen[1:]))
    return _row(f"worker {number}", peaks, plans[0])


def mirrored(share: float) -> dict[str, Any]:
    """Peaks of a process with two replicas, stock and rematerialized."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    import numpy as np

    import checkmate_tf

    peaks, plans = [], []
    for budget in (None, f"{share:.0%}"):
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            model = conv_chain()
            model.compile("sgd", "mse")
        random = np.random.default_rng(0)
        x, y = random.normal(size=(2 * BATCH_SIZE, 96, 96, 3)), random.normal(size=(2 * BATCH_SIZE, 10))
        if budget:
            plans.append(
                checkmate_tf.rematerialize(
                    model,
                    batch_size=2 * BATCH_SIZE,
                    budget=budget,
                    options=checkmate_tf.Options(costs="flops"),
                    time_limit_s=20,
                )
            )
        seen: list[int] = []
        observe = _observer(seen)
        dataset = tf.data.Dataset.from_tensors((x, y)).repeat(6)
        model.fit(dataset, steps_per_epoch=1, verbose=0)
        for _ in range(5):
            observe(lambda: model.fit(dataset, steps_per_epoch=1, verbose=0))  # noqa: B023
        resident = 2 * sum(np.asarray(v).nbytes for v in (*model.variables, *model.optimizer.variables))
        peaks.append(resident + max(seen[1:]))
    return _row("two replicas in one process", peaks, plans[0]) | {"budgets": 2}


def conv_chain() -> Any:
    import keras
    from keras import layers

    stack = [layers.Conv2D(24, 3, padding="same", activation="relu") for _ in range(12)]
    return keras.Sequential([keras.Input((96, 96, 3)), *stack, layers.GlobalAveragePooling2D(), layers.Dense(10)])


def _row(name: str, peaks: list[int], plan: Any) -> dict[str, Any]:
    return {
        "process": name,
        "budgets": 1,
        "stock_peak_bytes": peaks[0],
        "measured_peak_bytes": peaks[1],
        "replica_budget_bytes": plan.budget_bytes,
        "replica_predicted_peak_bytes": plan.predicted_peak_bytes,
        "overhead": plan.overhead,
    }


def _observer(seen: list[int]) -> Callable[[Callable[[], Any]], Any]:
    """Runs a step and notes the allocator's peak above what was held before."""
    from checkmate_tf.profiling.memory import measure_allocator_peak_bytes

    def observe(step: Callable[[], Any]) -> Any:
        results: list[Any] = []
        peak = measure_allocator_peak_bytes(lambda: results.append(step()))
        if peak is None:
            raise SystemExit("the CPU's allocator keeps no statistics: oneDNN is off")
        seen.append(peak)
        return results[0]

    return observe


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
