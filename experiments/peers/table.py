"""`rematerialize` against `tf.recompute_grad` and `keras.remat` around each block, at equal memory.

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
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, cast

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from tabulate import tabulate

import checkmate_tf
from checkmate_tf.measurement.runs import reserve_pool
from checkmate_tf.profiling.device import device_key
from experiments import running
from experiments.peers.models import MODELS, PEERS, Batch, Way, build

RESULTS = Path(__file__).parents[1] / "results"
_COMMAND = "python -m experiments.peers.table run"
_DEVICE = "CPU:0"
# Of the way that a row says: ours, with the peak of that peer as its budget.
_OURS = "rematerialize at "
WAYS = ("stock", *PEERS, *(_OURS + peer for peer in PEERS))
# More than any model here takes: all are measured in one region of the allocator's pool.
_POOL_BYTES = 1 << 30
# Gradients of weights that move nothing, such as a key's bias, are rounding alone: errors are not taken as parts of
# less than this share of the largest gradient of all.
_LEAST_SHARE = 1e-3


@dataclass(frozen=True)
class Row:
    """What was measured of a model trained one way; None where it was not, with the reason in `error`.

    Args:
        peak_bytes: what the model took, at most, from before it was built.
        gradient_error: of one step from equal weights, the largest difference to stock of any variable's gradient
            over the largest gradient of that variable.
        recomputed: nodes that are computed again.
    """

    model: str
    way: str
    peak_bytes: int | None = None
    budget_bytes: int | None = None
    predicted_overhead: float | None = None
    time_over_stock: float | None = None
    first_step_s: float | None = None
    stock_first_step_s: float | None = None
    planning_s: float | None = None
    recomputed: int | None = None
    gradient_error: float | None = None
    commit: str = ""
    machine: str = ""
    tensorflow: str = ""
    error: str = ""


COLUMNS = tuple(field.name for field in fields(Row))


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
    if way in known or (way.startswith(_OURS) and _peer_bytes(way, known) is None):
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
        budget_bytes=_peer_bytes(way, known) if way.startswith(_OURS) else None,
        commit=running.environment()["commit"][:12],
        machine=device_key(_DEVICE).device,
        tensorflow=tf.__version__,
    )
    running.append_row(path, COLUMNS, asdict(_measure(row, options)), digits=4)


def _peer_bytes(way: str, known: dict[str, Row]) -> int | None:
    peer = known.get(way.removeprefix(_OURS))
    return None if peer is None else peer.peak_bytes


def _warm_up() -> None:
    """Prepares what the first step of a process has to prepare, whatever its model."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    model.train_on_batch(np.zeros((1, 1)), np.zeros((1, 1)))


def _measure(row: Row, options: argparse.Namespace) -> Row:
    """Fills in a row. What TensorFlow, Keras or `rematerialize` refuse is a result, too."""
    gc.collect()
    held_bytes = tf.config.experimental.get_memory_info(_DEVICE)["current"]
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
    return replace(
        row,
        stock_first_step_s=stock_first.seconds,
        gradient_error=_gradient_error(first.gradients, stock_first.gradients),
        time_over_stock=_time_over_stock(model, stock, batch, options.pairs),
    )


def _built(row: Row) -> tuple[keras.Model, Batch]:
    """A fresh model of the row's way, or stock where the way is ours, and its batch."""
    return build(row.model, "stock" if row.way.startswith(_OURS) else cast(Way, row.way))


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
    tf.config.experimental.reset_memory_stats(_DEVICE)
    for _ in range(steps):
        model.train_on_batch(*batch)
    model.fit(*batch, batch_size=len(batch[0]), epochs=steps, shuffle=False, verbose=0)
    return tf.config.experimental.get_memory_info(_DEVICE)["peak"]


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


def read_rows(path: Path) -> list[Row]:
    """The results so far."""
    return [Row(**{key: _value(key, text) for key, text in row.items()}) for row in running.read_rows(path)]


_TEXTS = {"model", "way", "commit", "machine", "tensorflow", "error"}
_INTEGERS = {"peak_bytes", "budget_bytes", "recomputed"}


def _value(key: str, text: str) -> Any:
    if key in _TEXTS:
        return text
    return None if text == "" else int(text) if key in _INTEGERS else float(text)


def as_page(rows: list[Row]) -> str:
    """The results as Markdown: models by way, and how the ways compare over all models."""
    names, ways = list(MODELS), list(WAYS)
    rows = sorted(rows, key=lambda row: (names.index(row.model), ways.index(row.way)))
    stock_bytes = {row.model: row.peak_bytes for row in rows if row.way == "stock" and row.peak_bytes}
    headers = ["model", "way", "peak, MiB", "of stock", "budget, MiB", "step time over stock", "overhead, predicted"]
    headers += ["nodes recomputed", "first step, s", "stock's, s", "planning, s", "gradients differ by", "refused"]
    cells = [_cells(row, stock_bytes.get(row.model)) for row in rows]
    table = tabulate(cells, headers, tablefmt="pipe", disable_numparse=True, colalign=["left"] * 2 + ["right"] * 10)
    origins = sorted({f"{row.machine}, TensorFlow {row.tensorflow}, commit {row.commit}" for row in rows})
    return _PAGE.format(
        command=_COMMAND,
        show=_COMMAND.replace("run", "show"),
        origins="; ".join(origins),
        table=table,
        summary=tabulate(_summary(rows), _SUMMARY_HEADERS, tablefmt="pipe", disable_numparse=True),
    )


_SUMMARY_HEADERS = ["peer", "models", "peer's step time over stock", "rematerialize's", "faster at equal memory"]

_PAGE = """# rematerialize against tf.recompute_grad and keras.remat, at equal memory

Written by `{show}` from `peers.csv`, which `{command}` measures. {origins}. oneDNN is on, batches have eight rows.

The peers are put around each block of a model. `rematerialize` gets the peak that a peer was measured at as its budget.
Memory is in MiB (2^20 bytes), by TensorFlow's allocator: the highest over steps of `train_on_batch` and of `fit` on
arrays, with weights, optimizer state and batches. Step times are medians of ratios of paired steps. Stock's own
time is that of a second stock model over the first: what differs from 1 there is noise. A first step includes tracing.
Gradients are those of one step from equal weights, compared with stock's, relative to a variable's largest.

{table}

Geometric means over the models where both were measured; "faster" counts models.

{summary}
"""


def _cells(row: Row, stock_bytes: int | None) -> list[str]:
    share = None if row.peak_bytes is None or not stock_bytes else row.peak_bytes / stock_bytes
    return [
        row.model,
        row.way,
        _text(row.peak_bytes and row.peak_bytes / 2**20, ".1f"),
        _text(share, ".0%"),
        _text(row.budget_bytes and row.budget_bytes / 2**20, ".1f"),
        _text(row.time_over_stock, ".2f"),
        _text(row.predicted_overhead, ".1%"),
        _text(row.recomputed, "d"),
        _text(row.first_step_s, ".1f"),
        _text(row.stock_first_step_s, ".1f"),
        _text(row.planning_s, ".0f"),
        _text(row.gradient_error, ".0e"),
        row.error.replace("|", "/"),
    ]


def _text(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _summary(rows: list[Row]) -> list[list[str]]:
    times = {(row.model, row.way): row.time_over_stock for row in rows if row.time_over_stock is not None}
    table = []
    for peer in dict.fromkeys(row.way.removeprefix(_OURS) for row in rows if row.way.startswith(_OURS)):
        pairs = [
            (times[model, peer], times[model, _OURS + peer])
            for model in MODELS
            if (model, peer) in times and (model, _OURS + peer) in times
        ]
        if pairs:
            means = [f"{geometric_mean(column):.2f}" for column in zip(*pairs, strict=True)]
            faster = sum(ours < theirs for theirs, ours in pairs)
            table.append([peer, str(len(pairs)), *means, f"{faster} of {len(pairs)}"])
    return table


if __name__ == "__main__":
    main()
