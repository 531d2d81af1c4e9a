"""Trains each of the small models as it stands and rematerialized, and compares memory, numbers and time.

    python -m experiments.wild.trial [--model NAME ...] [--budget 70%] [--output FILE.csv] [--show]

A model trains twice, each time in a process of its own from the same seeds: ten batches through `fit`, then four times
one batch through `train_on_batch`. Peaks are what the allocator of the CPU held at most within a step; it counts only
with oneDNN on, which these processes set. A row is written as soon as it is there, and one that is there is not run
again. The page beside the table is written anew each time; `--show` writes it without running anything.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tabulate import tabulate

from experiments.running import RESULTS_FOLDER, Point, environment, read_rows, run_rows, write_text
from experiments.wild.models import MODELS

RESULTS = RESULTS_FOLDER / "wild.csv"
COMMAND = "python -m experiments.wild.trial"
_SEED = 1
_TRAIN_ON_BATCH_STEPS = 4
# Steps that trace and compile, whose times say nothing of the later ones.
_WARM_UP_STEPS = 2
_LEAST_ENTRY = 1e-3
_LONGEST_MESSAGE = 300
_TIME_LIMIT_S = 900
_STEP_S = 0.05
COLUMNS = (
    "model",
    "budget",
    "outcome",
    "message",
    "planning_s",
    "planned_stock_peak_bytes",
    "stock_peak_bytes",
    "budget_bytes",
    "predicted_peak_bytes",
    "measured_peak_bytes",
    "data_bytes",
    "first_step_peak",
    "last_step_peak",
    "highest_step_peak",
    "train_on_batch_peak",
    "gradients_difference",
    "weights_difference",
    "first_loss_difference",
    "cpu_time_ratio",
    "stock_step_s",
    "predicted_overhead",
    "num_nodes",
    "num_recomputed",
    "warning",
    "commit",
    "machine",
    "versions",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=list(MODELS), default=list(MODELS), metavar="NAME")
    parser.add_argument("--budget", default="70%", help="as rematerialize takes it")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the table; its page lies beside it")
    parser.add_argument("--show", action="store_true", help="only write and print the page of the table")
    parser.add_argument("--in-process", choices=("stock", "rematerialized"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_process:
        budget = options.budget if options.in_process == "rematerialized" else None
        options.output.write_text(json.dumps(trained(options.model[0], budget, options.output.with_suffix(".npz"))))
        return
    points = [{"model": name, "budget": options.budget} for name in options.model]
    if not options.show:
        run_rows(points, measured, options.output, COLUMNS, digits=5)
    text = page_of(read_rows(options.output))
    write_text(options.output.with_suffix(".md"), text)
    if options.show:
        print(text)


def measured(point: Point) -> dict[str, Any]:
    row = row_of(point["model"], point["budget"])
    print(row["model"], row["outcome"], row["message"], file=sys.stderr, flush=True)
    return row


def row_of(name: str, budget: str) -> dict[str, Any]:
    """A model's row: both trainings, compared."""
    around = environment()
    versions = around["versions"] | {"python": around["python"]} | _version_of(MODELS[name].needs)
    row: dict[str, Any] = {
        "model": name,
        "budget": budget,
        "message": "",
        "warning": "",
        "commit": around["commit"][:12],
    }
    row["versions"] = " ".join(f"{package} {number}" for package, number in versions.items())
    with TemporaryDirectory() as folder:
        stock, found = (
            in_process(name, kind, budget, Path(folder) / f"{kind}.json") for kind in ("stock", "rematerialized")
        )
        if "error" in stock:
            return row | {"outcome": "stock failed", "message": stock["error"]}
        row |= {"stock_peak_bytes": max(stock["peaks"]), "stock_step_s": stock["step_s"], "machine": stock["machine"]}
        row |= {column: found[column] for column in COLUMNS if column in found}
        if "refused" in found or "error" in found:
            return row | {"outcome": "refused" if "refused" in found else "failed", "message": _message(found)}
        row |= differences(Path(folder) / "stock.npz", Path(folder) / "rematerialized.npz")
    row["warning"] = found["warning"][:_LONGEST_MESSAGE]
    return row | compared(stock, found) | {"outcome": "accepted"}


def compared(stock: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Peaks over the budget, and the rematerialized training's time and loss against the stock one's.

    The peaks of `fit` are without the data that it holds beside the batches that the budget covers.
    """
    budget_bytes, peaks = found["budget_bytes"], [peak - found["data_bytes"] for peak in found["peaks"]]
    return {
        "first_step_peak": peaks[0] / budget_bytes,
        "last_step_peak": peaks[-1] / budget_bytes,
        "highest_step_peak": max(peaks) / budget_bytes,
        "train_on_batch_peak": max(found["train_on_batch_peaks"], default=0) / budget_bytes or None,
        "first_loss_difference": abs(found["first_loss"] - stock["first_loss"]) / abs(stock["first_loss"]),
        "cpu_time_ratio": found["step_s"] / stock["step_s"],
    }


def differences(stock: Path, found: Path) -> dict[str, float]:
    """The largest difference of a variable's entry, over the largest entry of that variable in the stock training.

    Of the optimizer's state after the first step, where momentum is the gradient itself, and of the trained weights.
    NaN where an entry is. A weight that is all but zero counts as if its largest entry were a thousandth, a gradient as
    if it were a thousandth of the largest of all.
    """
    with np.load(stock) as expected, np.load(found) as actual:
        apart = {key: float(np.abs(actual[key] - expected[key]).max()) for key in expected.files}
        largest = {key: float(np.abs(expected[key]).max()) for key in expected.files}
    largest_gradient = max((entry for key, entry in largest.items() if key.startswith("gradient")), default=0)
    least_entries = {"gradients": _LEAST_ENTRY * largest_gradient, "weights": _LEAST_ENTRY}
    return {
        f"{part}_difference": float(
            np.max([apart[key] / max(largest[key], least) for key in apart if key.startswith(part)])
        )
        for part, least in least_entries.items()
    }


def in_process(name: str, kind: str, budget: str, output: Path) -> dict[str, Any]:
    """What `trained` gives in a process of its own; {"error"} where that one ends otherwise or takes too long."""
    command = [sys.executable, "-m", "experiments.wild.trial", "--in-process", kind, "--model", name]
    variables = os.environ | {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    try:
        run = subprocess.run(
            [*command, "--budget", budget, "--output", str(output)],
            env=variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=_TIME_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {_TIME_LIMIT_S} s"}
    if run.returncode:
        return {"error": (run.stderr.strip().splitlines() or [f"exit status {run.returncode}"])[-1][:_LONGEST_MESSAGE]}
    return json.loads(output.read_text())


def trained(name: str, budget: str | None, weights_path: Path) -> dict[str, Any]:
    """Trains a model in this process, stock without a budget, and writes its trainable weights."""
    import warnings

    import keras

    from checkmate_tf.profiling.device import find_default_device, make_device_key

    entry = MODELS[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        keras.utils.set_random_seed(_SEED)
        model = entry.build()
        result: dict[str, Any] = {"machine": make_device_key(find_default_device()).device}
        result |= {} if budget is None else planned(model, budget, entry.plan_arguments())
        if "refused" in result:
            return result
        result["data_bytes"] = data_bytes(model, entry.fit_arguments())
        # Not by `set_random_seed`: TensorFlow then drops its kernels, and with them what a SentencePiece tokenizer has.
        random.seed(_SEED)
        steps = steps_recorded()
        model.fit(**entry.fit_arguments(), verbose=0, callbacks=[steps])
        result |= {
            "peaks": steps.peaks,
            "step_s": float(np.median(steps.cpu_s[_WARM_UP_STEPS:])),
            "first_loss": steps.losses[0],
            "train_on_batch_peaks": train_on_batch_peaks(model, entry.batch()),
            "warning": next((str(each.message) for each in caught if each.category is RuntimeWarning), ""),
        }
    kept = {"weights": as_arrays(model.trainable_variables), "gradients": steps.first_state}
    np.savez(weights_path, **{f"{part} {index}": each for part in kept for index, each in enumerate(kept[part])})
    return result


def as_arrays(variables: Any) -> list[np.ndarray]:
    """Copies of the variables that hold real numbers."""
    arrays = [np.array(each.numpy(), "float64") for each in variables if "float" in each.dtype]
    return [each for each in arrays if each.size]


def data_bytes(model: Any, arguments: dict[str, Any]) -> int:
    """What `fit` holds of the data beside the batches that the budget covers: this one and those prefetched."""
    import gc

    from checkmate_tf.training.batches import BatchSpec
    from checkmate_tf.training.installed_step import find_installed_step
    from checkmate_tf.training.prefetched import count_prefetched_batches

    batches_bytes: list[int] = []

    def take_all(iterator: Any) -> None:
        for batch in iterator:
            batches_bytes.append(BatchSpec.of(batch).size_bytes)
            time.sleep(_STEP_S)  # in which `fit` makes further batches ready
        raise InterruptedError  # not an error of training: nothing is trained

    installed, before = vars(model).pop("make_train_function", None), bytes_in_use()
    _forget_peak()
    model.make_train_function = lambda force=False: setattr(model, "train_function", take_all)
    with suppress(InterruptedError):
        model.fit(**arguments, verbose=0)
    held_bytes = _peak_bytes() - before
    del model.make_train_function
    model.train_function = None
    if installed is not None:
        model.make_train_function = installed
    gc.collect()
    step = find_installed_step(model)
    prefetched_bytes = None if step is None or step.newest is None else step.newest.prefetched_bytes
    if prefetched_bytes is None:
        prefetched_bytes = count_prefetched_batches() * max(batches_bytes)
    return max(0, held_bytes - max(batches_bytes) - prefetched_bytes)


def planned(model: Any, budget: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What the plan says, or {"refused"} with the message of an error of this package."""
    import checkmate_tf
    from checkmate_tf.errors import CheckmateError

    started_s = time.perf_counter()
    try:
        plan = checkmate_tf.rematerialize(model, budget=budget, progress=False, **arguments)
    except CheckmateError as error:
        return {"refused": f"{type(error).__name__}: {error}", "planning_s": time.perf_counter() - started_s}
    return {
        "planning_s": time.perf_counter() - started_s,
        "planned_stock_peak_bytes": plan.stock_peak_bytes,
        "budget_bytes": plan.budget_bytes,
        "predicted_peak_bytes": plan.predicted_peak_bytes,
        "measured_peak_bytes": plan.measured_peak_bytes,
        "predicted_overhead": plan.overhead,
        "num_nodes": len(plan.graph.nodes),
        "num_recomputed": len(plan.recomputed),
    }


def train_on_batch_peaks(model: Any, batch: tuple[Any, ...] | None) -> list[int]:
    """Peaks of a few steps on one batch; none where the model cannot be trained so."""
    if batch is None:
        return []
    peaks = []
    for _ in range(_TRAIN_ON_BATCH_STEPS):
        _forget_peak()
        model.train_on_batch(*batch)
        peaks.append(_peak_bytes())
    return peaks


def steps_recorded() -> Any:
    """A callback that keeps peak, CPU seconds and loss of each step, and the optimizer's state after the first."""
    import keras

    class Steps(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.peaks: list[int] = []
            self.cpu_s: list[float] = []
            self.losses: list[float] = []
            self.first_state: list[np.ndarray] = []

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            _forget_peak()
            self.started_s = time.process_time()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.cpu_s.append(time.process_time() - self.started_s)
            self.peaks.append(_peak_bytes())
            self.losses.append(float(logs["loss"]))
            self.first_state = self.first_state or as_arrays(self.model.optimizer.variables)

    return Steps()


def _forget_peak() -> None:
    import tensorflow as tf

    tf.config.experimental.reset_memory_stats("CPU:0")


def _peak_bytes() -> int:
    import tensorflow as tf

    return int(tf.config.experimental.get_memory_info("CPU:0")["peak"])


def bytes_in_use() -> int:
    import tensorflow as tf

    return int(tf.config.experimental.get_memory_info("CPU:0")["current"])


def _message(found: dict[str, Any]) -> str:
    return (found.get("refused") or found["error"])[:_LONGEST_MESSAGE]


def _version_of(package: str) -> dict[str, str]:
    return {package: version(package)} if package else {}


def page_of(rows: list[dict[str, Any]]) -> str:
    """The table in markdown, with what its columns mean and what it was made with."""
    table = tabulate([_line(row) for row in rows], _HEADERS, tablefmt="github", disable_numparse=True)
    made_with = sorted({f"- {row['machine']}; commit {row['commit']}; {row['versions']}" for row in rows})
    return "\n".join((_PAGE_HEAD, table, "", "Made with:", "", *made_with, ""))


def page() -> str:
    """The page of the results that are kept."""
    return page_of(read_rows(RESULTS))


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    def shown(column: str, form: str, scale: float = 1) -> str:
        value = row.get(column)
        return "" if value in (None, "") else format(float(value) / scale, form)

    outcome = _on_one_line(": ".join(filter(None, (row["outcome"], row["message"]))))
    mebibytes = (
        "stock_peak_bytes",
        "planned_stock_peak_bytes",
        "budget_bytes",
        "predicted_peak_bytes",
        "measured_peak_bytes",
    )
    peaks = ("first_step_peak", "last_step_peak", "highest_step_peak", "train_on_batch_peak")
    return (
        row["model"],
        row["budget"],
        MODELS[row["model"]].what if row["model"] in MODELS else "",
        outcome,
        shown("planning_s", ".0f"),
        *(shown(column, ".1f", 2**20) for column in mebibytes),
        *(shown(column, ".3f") for column in peaks),
        *(shown(column, ".0e") for column in ("gradients_difference", "weights_difference", "first_loss_difference")),
        shown("cpu_time_ratio", ".2f"),
        shown("predicted_overhead", ".1%"),
        shown("num_recomputed", ".0f"),
        _on_one_line(row["warning"] or ""),
    )


def _on_one_line(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


_HEADERS = (
    "model",
    "of the peak",
    "what it does",
    "outcome",
    "planning s",
    "stock",
    "stock in planning",
    "budget",
    "predicted",
    "measured",
    "first",
    "last",
    "highest",
    "train_on_batch",
    "gradients",
    "weights",
    "first loss",
    "CPU time",
    "overhead",
    "recomputed",
    "warning",
)
_PAGE_HEAD = f"""# Small models, stock and rematerialized

Generated by `{COMMAND}`. A model trains ten batches through `fit` and then one batch four times through
`train_on_batch`, once as it stands and once after `rematerialize`.

- Stock, budget, predicted, measured: peaks in MiB, of the stock steps through `fit` (with the data that it holds), of
  the same in planning, and of the plan. The budget is a share of the stock peak in planning.
- First, last, highest, train_on_batch: peaks of rematerialized steps over the budget. Those of `fit` are without
  the data that it holds beside the batches of the budget, as a `fit` that trains nothing holds them.
- Gradients: the largest difference of the optimizer's state after the first step from the stock training's, over the
  largest entry of its variable, which counts as at least a thousandth of the largest of all. With momentum that is the
  gradient times the learning rate. Weights: the same of the trained weights.
- First loss: its relative difference.
- CPU time: CPU seconds of a rematerialized step over those of a stock one, medians. Overhead: what the plan predicts.
- Recomputed: nodes that are computed more than once. Warning: the first one of training.
"""


if __name__ == "__main__":
    main()
