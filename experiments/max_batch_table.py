"""Three models within 2 GiB by the allocator: the stock step's largest batch and ours, found, run and timed.

    python -m experiments.max_batch_table [--model NAME ...]

The stages of each model run in processes of their own, and every step that is measured in another. What is known is
kept in experiments/results/max_batch/NAME.json: run it again to go on where it stopped. Stage "found" is the search,
which runs the next larger batch too, "stock" brackets the stock step's largest batch, "times" times both.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tabulate import tabulate

RESULTS = Path(__file__).resolve().parent / "results" / "max_batch"
BUDGET_BYTES = 2 * 2**30
MAX_OVERHEAD = "one forward pass"
MODELS = ("unet", "mobilenet", "resnet20")
STAGES = ("found", "stock", "times")
_MAX_STOCK_RUNS = 5
_TIMEOUT_S = 500.0
_SOLVER_S = 30.0


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


def find(name: str, costs: str, cache_path: str | None) -> dict[str, Any]:
    """Our largest batch, with its schedule and the size whose trace the schedule's nodes are numbered by."""
    import checkmate_tf
    from checkmate_tf.commands.max_batch import list_figures
    from checkmate_tf.profiling.costs import make_cost_model
    from experiments.running import environment

    started = time.perf_counter()

    def say(trial: Any) -> None:
        print(f"{time.perf_counter() - started:.0f} s {trial}", file=sys.stderr, flush=True)

    found = checkmate_tf.max_batch_size(
        build(name),
        BUDGET_BYTES,
        max_overhead=MAX_OVERHEAD,
        costs=make_cost_model(costs, cache_path=cache_path),
        time_limit_s=_SOLVER_S,
        on_trial=say,
    )
    print(found, file=sys.stderr)
    return {
        "model": name,
        "seed": 0,
        "costs": costs,
        "load_average": os.getloadavg()[0],
        "cores": len(os.sched_getaffinity(0)),
        **environment(),
        "found": list_figures(found),
        "resident_bytes": found.plan.resident.total,
        "reference_size": found.reference_size,
        "order": list(found.plan.schedule.order),
    }


def run(result: dict[str, Any], size: int, *, stock: bool) -> dict[str, Any]:
    """The stock step or ours at a size, really run."""
    from dataclasses import asdict

    from checkmate_tf.max_batch.sized_step import SizedStep
    from checkmate_tf.schedule import Schedule

    step = SizedStep.of(build(result["model"]), "batch")
    reference = step.trace(result["reference_size"])
    schedule = None if stock else Schedule.of(result["order"])
    done = {"size": size, **asdict(step.run(size, step.trace(size, reference), schedule, timeout_s=_TIMEOUT_S))}
    print(done, file=sys.stderr, flush=True)
    return done


def stock_runs(path: Path) -> dict[str, Any]:
    """Runs the stock step where the peaks measured point to, until one batch fits and the next does not."""
    result = json.loads(path.read_text())
    runs = result.setdefault("stock_runs", [])
    while len(runs) < _MAX_STOCK_RUNS:
        fits = max((r["size"] for r in runs if _within(r)), default=0)
        above = min((r["size"] for r in runs if not _within(r)), default=10**9)
        if above - fits <= 1:
            break
        size = result["found"]["stock_size"]
        if runs:
            per_row = ((runs[-1]["measured_peak_bytes"] or 2**32) - result["resident_bytes"]) / runs[-1]["size"]
            size = int((BUDGET_BYTES - result["resident_bytes"]) / per_row)
        runs.append(run(result, min(max(size, fits + 1), above - 1), stock=True))
        path.write_text(json.dumps(result, indent=1) + "\n")
    return {"stock": max((r for r in runs if _within(r)), key=lambda r: r["size"], default=None)}


def times(result: dict[str, Any]) -> dict[str, Any]:
    """Both steps once more, one after the other, for their times."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "stock": run(result, result["stock"]["size"], stock=True),
        "ours": run(result, result["found"]["size"], stock=False),
    }


def do_stage(name: str, stage: str, path: Path, costs: str, cache_path: str | None) -> None:
    """Computes one stage and keeps it."""
    known = json.loads(path.read_text()) if path.exists() else {}
    if stage == "found":
        result = known | find(name, costs, cache_path)
    elif stage == "stock":
        found = stock_runs(path)
        result = json.loads(path.read_text()) | found
    else:
        result = known | {"times": times(known)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def table(results: list[dict[str, Any]]) -> str:
    """A line a model: batches, peaks in MiB, images a second."""
    rows = []
    for result in results:
        found, stock, timed = result["found"], result.get("stock"), result.get("times")
        rows.append(
            {
                "model": result["model"],
                "stock": stock["size"] if stock else "-",
                "ours": found["size"],
                "ratio": f"{found['size'] / stock['size']:.2f}" if stock else "-",
                "peak, MiB": f"{found['measured_peak_bytes'] / 2**20:.0f}",
                "beyond": found["beyond"],
                "overhead": f"{found['overhead']:.1%}",
                "images/s, ours over stock": f"{_speed(timed['ours']) / _speed(timed['stock']):.2f}" if timed else "-",
                "solves, runs": f"{found['num_solves']}, {sum(t['kind'] == 'run' for t in found['trials'])}",
                "seconds": f"{found['seconds']:.0f}",
            }
        )
    return tabulate(rows, headers="keys", disable_numparse=True)


def results_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def page() -> str:
    """The results that are kept, in markdown."""
    return _PAGE.format(table=table(results_in(RESULTS)))


_PAGE = """# The largest batch within 2 GiB

Written by `python -m experiments.pages max_batch.md` from `max_batch/`, which `python -m experiments.max_batch_table`
measures. "Stock" and "ours" are the largest numbers of rows whose steps ran within the budget, and "beyond" is what
the next number of rows did. The peak is the allocator's. Images a second are those of each at its own largest batch;
the overhead is predicted. Solves and runs are those of the search, and seconds are its whole time.

```text
{table}
```
"""


def _speed(run: dict[str, Any]) -> float:
    return run["size"] / run["step_time_s"]


def _within(run: dict[str, Any]) -> bool:
    return not run["failure"] and run["measured_peak_bytes"] <= BUDGET_BYTES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--stage", nargs="*", default=list(STAGES), choices=STAGES)
    parser.add_argument("--costs", default="roofline", help="measured, roofline or flops (default: %(default)s)")
    parser.add_argument("--cache", help="of what costs need measured (default: in the user's cache directory)")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_process:
        (name,), (stage,) = options.model, options.stage
        do_stage(name, stage, options.output / f"{name}.json", options.costs, options.cache)
        return
    for name in options.model:
        path = options.output / f"{name}.json"
        for stage in options.stage:
            if path.exists() and stage in json.loads(path.read_text()):
                continue
            command = [sys.executable, "-m", "experiments.max_batch_table", "--in-process", "--model", name]
            command += ["--stage", stage, "--output", str(options.output), "--costs", options.costs]
            command += ["--cache", options.cache] if options.cache else []
            environment = os.environ | {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
            subprocess.run(command, check=True, env=environment)
    print(table(results_in(options.output)))


if __name__ == "__main__":
    main()
