"""The budget holds on each replica: allocator's peaks under MultiWorkerMirroredStrategy and MirroredStrategy.

    python -m experiments.keras_distributed [--share 0.4] [--output FILE]

Two workers, processes that talk over loopback, train a chain of convolutions in a custom loop whose gradients
`rewrite_function` rewrote; each has an allocator of its own. Then `fit`'s step of the same model on two logical
devices of one process: they share an allocator, which is to keep within twice a replica's budget. oneDNN is on: the
CPU's allocator keeps statistics only then. Peaks are the highest of the last four of five steps, with what is resident.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parent / "results" / "keras_users" / "distributed.json"
BATCH_SIZE = 8  # of each replica


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--share", type=float, default=0.4, help="the budget, as a share of the stock replica's peak")
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--mirrored", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(worker(options.share, options.worker[:2], int(options.worker[2]))), flush=True)
        return
    if options.mirrored:
        print(json.dumps(mirrored(options.share)), flush=True)
        return
    ports = [str(_free_port()) for _ in range(2)]
    rows = _run([["--worker", *ports, str(number)] for number in range(2)], options.share)
    rows += _run([["--mirrored"]], options.share)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"share": options.share, "rows": rows}, indent=1))
    print(json.dumps(rows, indent=1))


def worker(share: float, ports: list[str], number: int) -> dict[str, Any]:
    """Peaks of one worker's step in the stock and in the rewritten custom loop."""
    import tensorflow as tf

    import checkmate_tf
    from experiments.keras_users.worker import train

    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": number}})
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    plans: list[Any] = []

    def rewrite(gradients: Any) -> Any:
        budget = int(share * peaks[0])
        rewritten = checkmate_tf.rewrite_function(gradients, budget=budget, costs="flops", time_limit_s=20)
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
                    model, batch_size=2 * BATCH_SIZE, budget=budget, costs="flops", time_limit_s=20
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
    return _row("mirrored, two replicas in one process", peaks, plans[0]) | {"budgets": 2}


def conv_chain() -> Any:
    import keras
    from keras import layers

    stack = [layers.Conv2D(24, 3, padding="same", activation="relu") for _ in range(12)]
    return keras.Sequential([keras.Input((96, 96, 3)), *stack, layers.GlobalAveragePooling2D(), layers.Dense(10)])


def _row(name: str, peaks: list[int], plan: Any) -> dict[str, Any]:
    return {
        "process": name,
        "stock_peak_bytes": peaks[0],
        "measured_peak_bytes": peaks[1],
        "budget_bytes_of_a_replica": plan.budget_bytes,
        "predicted_peak_bytes_of_a_replica": plan.predicted_peak_bytes,
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


def _run(arguments: list[list[str]], share: float) -> list[dict[str, Any]]:
    environment = os.environ | {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-m", "experiments.keras_distributed", "--share", str(share)]
    processes = [
        subprocess.Popen([*command, *more], env=environment, stdout=subprocess.PIPE, text=True) for more in arguments
    ]
    return [json.loads(process.communicate(timeout=400)[0].splitlines()[-1]) for process in processes]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
