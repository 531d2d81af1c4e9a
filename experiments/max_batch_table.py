"""Three models within 2 GiB by the allocator: the stock step's largest batch and ours, found, run and timed.

    python -m experiments.max_batch_table [--model NAME ...]

Each model has a process of its own, and every step that is measured in it another. First our largest batch is
searched, which runs the next larger batch too; then the stock step's largest batch is bracketed; then both are timed.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tabulate import tabulate

from experiments.running import RESULTS_FOLDER, Point, Row, made_with, read_rows, run_apart

RESULTS = RESULTS_FOLDER / "max_batch.csv"
BUDGET_BYTES = 2 * 2**30
MAX_OVERHEAD = "one forward pass"
MODELS = ("unet", "mobilenet", "resnet20")
COLUMNS = (
    "model", "costs", "size", "stock_size", "beyond", "measured_peak_bytes", "predicted_peak_bytes",
    "stock_peak_bytes", "resident_bytes", "overhead", "cost_error", "num_solves", "num_runs", "num_stock_runs",
    "seconds", "step_s", "stock_step_s", "cores", "load_average", "seed",
)  # fmt: skip
_MAX_STOCK_RUNS = 5
_TIMEOUT_S = 500.0
_SOLVER_S = 30.0

RunAt = Callable[[int], dict[str, Any]]


def points(models: Sequence[str] = MODELS) -> list[Point]:
    return [{"model": name} for name in models]


def compute(point: Point) -> dict[str, Any]:
    """Both largest batches of a model, timed one after the other; the point also says `costs` and `cache`."""
    from checkmate_tf.commands.max_batch import list_figures
    from checkmate_tf.max_batch.sized_step import SizedStep

    found = find(point["model"], point["costs"], point["cache"])
    step = SizedStep.of(build(point["model"]), "batch")
    reference = step.trace(found.reference_size)

    def run(size: int, schedule: Any) -> dict[str, Any]:
        done = step.run(size, step.trace(size, reference), schedule, timeout_s=_TIMEOUT_S)
        print(size, done, file=sys.stderr, flush=True)
        return {"size": size, **asdict(done)}

    told = list_figures(found)
    resident_bytes = found.plan.resident.total
    stock_runs = bracketed(told["stock_size"], resident_bytes, lambda size: run(size, None))
    stock = max((r for r in stock_runs if _within(r)), key=lambda r: r["size"], default=None)
    times = [run(stock["size"], None) if stock else None, run(told["size"], found.plan.schedule)]
    return {
        **{key: told[key] for key in ("size", "beyond", "measured_peak_bytes", "predicted_peak_bytes", "overhead")},
        **{key: told[key] for key in ("cost_error", "num_solves")},
        "seconds": told["took_s"],
        "costs": point["costs"],
        "stock_size": stock["size"] if stock else None,
        "stock_peak_bytes": stock["measured_peak_bytes"] if stock else None,
        "resident_bytes": resident_bytes,
        "num_runs": sum(trial["kind"] == "run" for trial in told["trials"]),
        "num_stock_runs": len(stock_runs),
        "stock_step_s": times[0]["step_time_s"] if times[0] else None,
        "step_s": times[1]["step_time_s"],
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "seed": 0,
    }


def find(name: str, costs: str, cache_path: str | None) -> Any:
    """Our largest batch."""
    import checkmate_tf
    from checkmate_tf.profiling.costs import make_cost_model

    return checkmate_tf.max_batch_size(
        build(name),
        budget=BUDGET_BYTES,
        max_overhead=MAX_OVERHEAD,
        options=checkmate_tf.Options(costs=make_cost_model(costs, cache_path=cache_path)),
        time_limit_s=_SOLVER_S,
    )


def bracketed(guess: int, resident_bytes: int, run: RunAt) -> list[dict[str, Any]]:
    """Runs the stock step where the peaks measured point to, until one batch fits and the next does not."""
    runs: list[dict[str, Any]] = []
    while len(runs) < _MAX_STOCK_RUNS:
        fits = max((r["size"] for r in runs if _within(r)), default=0)
        above = min((r["size"] for r in runs if not _within(r)), default=10**9)
        if above - fits <= 1:
            break
        size = guess
        if runs:
            per_row = ((runs[-1]["measured_peak_bytes"] or 2**32) - resident_bytes) / runs[-1]["size"]
            size = int((BUDGET_BYTES - resident_bytes) / per_row)
        runs.append(run(min(max(size, fits + 1), above - 1)))
    return runs


def table(rows: Sequence[Row]) -> str:
    """A line a model: batches, peaks in MiB, images a second."""
    return tabulate([_line(row) for row in rows], headers="keys", disable_numparse=True)


def _line(row: Row) -> dict[str, str]:
    if row["error"]:
        return {"model": row["model"], "stock": row["error"]}
    stock, ours = row["stock_size"], row["size"]
    speeds = [
        int(size) / float(seconds) for size, seconds in ((ours, row["step_s"]), (stock, row["stock_step_s"])) if seconds
    ]
    return {
        "model": row["model"],
        "stock": stock or "-",
        "ours": ours,
        "ratio": f"{int(ours) / int(stock):.2f}" if stock else "-",
        "peak, MiB": f"{int(row['measured_peak_bytes']) / 2**20:.0f}",
        "beyond": row["beyond"],
        "overhead": f"{float(row['overhead']):.1%}",
        "images/s, ours over stock": f"{speeds[0] / speeds[1]:.2f}" if len(speeds) == 2 else "-",
        "solves, runs": f"{row['num_solves']}, {row['num_runs']}",
        "seconds": f"{float(row['seconds']):.0f}",
    }


def page() -> str:
    """The results that are kept, in markdown."""
    rows = sorted(read_rows(RESULTS), key=lambda row: row["model"])
    return _PAGE.format(table=table(rows), made_with=made_with(rows))


_PAGE = """# The largest batch within 2 GiB

Written by `python -m experiments.pages max_batch.md` from `max_batch.csv`, which `python -m
experiments.max_batch_table` measures. "Stock" and "ours" are the largest numbers of rows whose steps ran within the
budget, and "beyond" is the result with the next number of rows. The peak is the allocator's. Images per second are
those of each at its own largest batch, and the overhead is predicted. Solves and runs are those of the search, and
seconds are its total time.

```text
{table}
```

{made_with}
"""


def _within(run: dict[str, Any]) -> bool:
    return not run["failure"] and run["measured_peak_bytes"] <= BUDGET_BYTES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--costs", default="roofline", help="measured, roofline or flops (default: %(default)s)")
    parser.add_argument("--cache", help="of what costs need measured (default: in the user's cache directory)")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    settings = {"costs": options.costs, "cache": options.cache}
    wanted = points(options.model)
    print(table(run_apart("experiments.max_batch_table", wanted, options.output, COLUMNS, settings=settings)))


def build(name: str) -> Any:
    """A compiled model: the U-Net of the script, MobileNet for images of 96 x 96, or the ResNet20 of CIFAR."""
    import keras

    from experiments.max_batch import unet

    keras.utils.set_random_seed(0)
    if name == "unet":
        return unet()
    model = keras.applications.MobileNet(weights=None, input_shape=(96, 96, 3), classes=10)
    if name == "resnet20":
        model = _resnet20()
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy", jit_compile=False)
    return model


def _resnet20() -> Any:
    """He et al. (2016), section 4.2: three stages of three blocks at 32 x 32."""
    import keras
    from keras import layers

    def unit(x: Any, channels: int, stride: int = 1) -> Any:
        x = layers.Conv2D(channels, 3, strides=stride, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    image = keras.Input((32, 32, 3))
    x = layers.ReLU()(unit(image, 16))
    for stage, channels in enumerate((16, 32, 64)):
        for block in range(3):
            stride = 2 if stage and not block else 1
            shortcut = layers.Conv2D(channels, 1, strides=stride)(x) if stride > 1 else x
            inner = layers.ReLU()(unit(x, channels, stride))
            x = layers.ReLU()(layers.Add()([unit(inner, channels), shortcut]))
    return keras.Model(image, layers.Dense(10, "softmax")(layers.GlobalAveragePooling2D()(x)), name="resnet20")


if __name__ == "__main__":
    main()
