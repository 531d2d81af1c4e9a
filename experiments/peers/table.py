"""`rematerialize` against `tf.recompute_grad` and `keras.remat` around each block and Grappler, at equal memory.

    python -m experiments.peers.table run [--model NAME ...] [--output DIR]
    python -m experiments.peers.table show [--output DIR]    # the results as a page of Markdown

Each row is measured in a process of its own and kept as it comes: run it again to go on where it stopped. A row that
is taken out of peers.csv is measured again. TensorFlow holds what `tf.recompute_grad` was put around as long as the
process lives, so no two rows share one.
First come stock and peers, then `rematerialize` with the peak of each peer as its budget. A peak is the allocator's
highest over steps of `train_on_batch` and of `fit` on arrays, less what the process held before the model was built:
weights, optimizer state and batches count. Times are medians of ratios of pairs of steps on the same batch, stock
first in every other pair; stock's own row, against another stock model, is what noise does.
oneDNN is on: the CPU's allocator keeps statistics only then.
"""

import argparse
import gc
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import cast

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import checkmate_tf
from checkmate_tf.measurement.device_memory import count_bytes_in_use, reserve_pool
from checkmate_tf.profiling.device import make_device_key
from checkmate_tf.profiling.memory import read_peak_bytes, reset_peak_bytes
from experiments import running
from experiments.peers.grappler import count_recomputed
from experiments.peers.models import MODELS, Batch, build
from experiments.peers.rows import COLUMNS, OURS, WAYS, Row, Way, as_page, read_rows

RESULTS = Path(__file__).parents[1] / "results"
_DEVICE = "CPU:0"
# More than any model here takes: all are measured in one region of the allocator's pool.
_POOL_BYTES = 1 << 30
# Gradients of weights that move nothing, such as a key's bias, are rounding alone: errors are not taken as parts of
# less than this share of the largest gradient of all.
_LEAST_SHARE = 1e-3


@dataclass(frozen=True)
class FirstStep:
    """The first step of a fresh model: its time, with tracing, and its gradients times the learning rate."""

    seconds: float
    gradients: list[np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=("run", "show"))
    parser.add_argument("--model", nargs="*", default=list(MODELS), choices=tuple(MODELS))
    parser.add_argument("--way", nargs="*", default=list(WAYS), choices=WAYS, help="ours come after their peers")
    parser.add_argument("--steps", type=int, default=6, help="of train_on_batch, and of fit, that tell the peak")
    parser.add_argument("--pairs", type=int, default=15, help="of timed steps, 0 for none")
    parser.add_argument("--time-limit-s", type=float, default=60.0, help="of the solver, for each budget")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    if options.in_process:
        with running.forget_plans():
            run_row(options.model[0], options.way[0], options)
        return
    ways = [(name, way) for name in options.model for way in options.way] if options.phase == "run" else []
    failed = [f"{name}, {way}" for name, way in ways if not _run_apart(name, way, options)]
    page = options.output / "peers.md"
    running.write_text(page, as_page(read_rows(options.output / "peers.csv")))
    print(f"{page} is written" + (f"; these ended early, run them again: {'; '.join(failed)}" if failed else ""))
    sys.exit(bool(failed))


def _run_apart(name: str, way: str, options: argparse.Namespace) -> bool:
    """Measures a row in a process of its own, unless it is known or has no budget, and says whether that ended well."""
    known = {row.way: row for row in read_rows(options.output / "peers.csv") if row.model == name}
    if way in known or (way.startswith(OURS) and _peer_bytes(way, known) is None):
        return True
    command = [sys.executable, "-m", "experiments.peers.table", "run", "--in-process", "--model", name, "--way", way]
    command += ["--steps", str(options.steps), "--pairs", str(options.pairs)]
    command += ["--time-limit-s", str(options.time_limit_s), "--output", str(options.output)]
    variables = os.environ | {"TF_ENABLE_ONEDNN_OPTS": "1"}
    return subprocess.run(command, check=False, env=variables).returncode == 0


def run_row(name: str, way: str, options: argparse.Namespace) -> None:
    """Measures a model trained one way and adds that to the results."""
    path = options.output / "peers.csv"
    known = {row.way: row for row in read_rows(path) if row.model == name}
    reserve_pool(_POOL_BYTES)
    _warm_up()
    row = Row(
        name,
        way,
        budget_bytes=_peer_bytes(way, known) if way.startswith(OURS) else None,
        commit=running.environment()["commit"][:12],
        machine=make_device_key(_DEVICE).device,
        tensorflow=tf.__version__,
    )
    running.append_row(path, COLUMNS, asdict(_measure(row, options)), digits=4)


def _peer_bytes(way: str, known: dict[str, Row]) -> int | None:
    peer = known.get(way.removeprefix(OURS))
    return None if peer is None else peer.peak_bytes


def _warm_up() -> None:
    """Prepares what the first step of a process has to prepare, whatever its model."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    model.train_on_batch(np.zeros((1, 1)), np.zeros((1, 1)))


def _measure(row: Row, options: argparse.Namespace) -> Row:
    """Fills in a row. What TensorFlow, Keras or `rematerialize` refuse is a result, too."""
    gc.collect()
    held_bytes = count_bytes_in_use()
    try:
        if row.budget_bytes is not None:
            row, model, batch = _rematerialized(row, options)
        else:
            model, batch = _built(row)
        first = _first_step(model, batch)
    except Exception as error:
        return replace(row, error=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    row = replace(row, first_step_s=first.seconds, peak_bytes=_peak_bytes(model, batch, options.steps) - held_bytes)
    stock, _ = _built(replace(row, way="stock"))
    stock_first = _first_step(stock, batch)
    if row.way == "Grappler":
        row = replace(row, recomputed=count_recomputed(*_built(row)))
    return replace(
        row,
        stock_first_step_s=stock_first.seconds,
        gradient_error=_gradient_error(first.gradients, stock_first.gradients),
        time_over_stock=_time_over_stock(model, stock, batch, options.pairs),
    )


def _built(row: Row) -> tuple[keras.Model, Batch]:
    """A fresh model of the row's way, or stock where the way is ours, and its batch."""
    return build(row.model, "stock" if row.way.startswith(OURS) else cast(Way, row.way))


def _rematerialized(row: Row, options: argparse.Namespace) -> tuple[Row, keras.Model, Batch]:
    model, batch = _built(row)
    assert row.budget_bytes is not None
    started = time.perf_counter()
    plan = checkmate_tf.rematerialize(
        model, data=batch, budget=row.budget_bytes, time_limit_s=options.time_limit_s, progress=False
    )
    planning_s = time.perf_counter() - started
    row = replace(row, planning_s=planning_s, predicted_overhead=plan.overhead, recomputed=len(plan.recomputed))
    return row, model, batch


def _first_step(model: keras.Model, batch: Batch) -> FirstStep:
    """Takes the step. What the momenta are after it are its gradients, without the rounding of the weights."""
    seconds = _seconds(model, batch)
    return FirstStep(seconds, [np.asarray(momentum) for momentum in model.optimizer.momentums])


def _peak_bytes(model: keras.Model, batch: Batch, steps: int) -> int:
    """The most that the allocator had in use in steps of `train_on_batch` and of `fit`, whoever held it.

    Each epoch of `fit` is one step: the allocator holds the arrays as a whole, and no more than a batch is to count.
    """
    reset_peak_bytes(_DEVICE)
    for _ in range(steps):
        model.train_on_batch(*batch)
    model.fit(*batch, batch_size=len(batch[0]), epochs=steps, shuffle=False, verbose=0)
    return read_peak_bytes(_DEVICE)


def _gradient_error(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    largest = max(float(abs(gradient).max()) for gradient in expected)
    return max(
        float(abs(mine - stock).max()) / max(float(abs(stock).max()), _LEAST_SHARE * largest)
        for mine, stock in zip(found, expected, strict=True)
    )


def _time_over_stock(model: keras.Model, stock: keras.Model, batch: Batch, pairs: int) -> float | None:
    ratios = []
    for pair in range(pairs + 1):
        if pair % 2:
            stock_s = _seconds(stock, batch)
            ratios.append(_seconds(model, batch) / stock_s)
        else:
            ratios.append(_seconds(model, batch) / _seconds(stock, batch))
    return median(ratios[1:]) if pairs else None  # the first pair warms up


def _seconds(model: keras.Model, batch: Batch) -> float:
    started = time.perf_counter()
    model.train_on_batch(*batch)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
