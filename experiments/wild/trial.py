"""Trains each of the small models as it stands and rematerialized, and compares memory, numbers and time.

    python -m experiments.wild.trial [--model NAME ...] [--budget 70% 50%] [--output FILE.csv] [--show]

A model trains four times, each in a process of its own from the same seeds: twice as it stands, which shows how far
apart two such trainings are, once as it stands from variables that differ in their last bit, and once rematerialized.
A training has four parts, one after another:

- `fit` on two batches and a half, so that the last one is smaller;
- `train_on_batch`, three times;
- `fit` on the same rows from a generator whose length nobody knows, for two epochs;
- `fit` on two batches beside a process that keeps all cores busy, where the model is rematerialized.

Then the rematerialized process runs stock and rematerialized steps in turn, and compares their times. A custom loop has
no `fit`: its step is called where `train_on_batch` and the last part would be.

Peaks are those of `MemoryReport`, of every step; the allocator of the CPU keeps them only with oneDNN on, which these
processes set. A row is written as soon as it is there, and one that is there is not run again. The page beside the
table is written anew each time; `--show` writes it without running anything.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tabulate import tabulate

from checkmate_tf.measurement.difference import StepDifference, UpdateDifference, nudge
from checkmate_tf.training.installed_step import find_installed_step
from experiments.running import RESULTS_FOLDER, Point, environment, forget_plans, read_rows, run_rows, write_text
from experiments.wild.models import LOOPS, MODELS
from experiments.wild.recording import bytes_in_use, forget_peak, peak_bytes

RESULTS = RESULTS_FOLDER / "wild.csv"
COMMAND = "python -m experiments.wild.trial"
BUDGETS = ("70%", "50%")
# The parts of a training, in order.
PARTS = ("fit", "train_on_batch", "unknown_length", "busy")
_SEED = 1
_BATCHES = 2.5
_STEPS_ON_BATCH = 3
_PAIRS = 7
_LEAST_ENTRY = 1e-3
# Differences below this are of sums in another order.
_ROUNDING = 1e-5
_BUSY_BEFORE_S = 1.0
_LONGEST_MESSAGE = 300
_TIME_LIMIT_S = 900
# What keeps all cores busy, for as long as the process lives that started it.
_BUSY = """
import os, numpy
parent, matrix = os.getppid(), numpy.ones((700, 700))
while os.getppid() == parent:
    matrix @ matrix
"""
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
    *(f"{part}_peak" for part in PARTS),
    "gradients_difference",
    "stock_gradients_difference",
    "weights_difference",
    "stock_weights_difference",
    "nudged_weights_difference",
    "differs_after",
    "part_differences",
    "differing_updates",
    "first_loss_difference",
    "stock_step_s",
    "predicted_overhead",
    "measured_overhead",
    "cpu_overhead",
    "num_nodes",
    "num_recomputed",
    "num_plans",
    "warning",
    "commit",
    "machine",
    "versions",
)


def main() -> None:
    names = [*MODELS, *LOOPS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--budget", nargs="+", default=list(BUDGETS), help="as rematerialize takes it")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the table; its page lies beside it")
    parser.add_argument("--show", action="store_true", help="only write and print the page of the table")
    parser.add_argument("--in-process", choices=("stock", "nudged", "rematerialized"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_process:
        budget = options.budget[0] if options.in_process == "rematerialized" else None
        train = trained_loop if options.model[0] in LOOPS else trained
        with forget_plans():
            nudged = options.in_process == "nudged"
            found = train(options.model[0], budget, options.output.with_suffix(".npz"), nudged=nudged)
        options.output.write_text(json.dumps(found))
        return
    points = [{"model": name, "budget": budget} for name in options.model for budget in options.budget]
    if not options.show:
        with TemporaryDirectory() as folder:
            run_rows(points, partial(measured, Path(folder)), options.output, COLUMNS, digits=5)
    text = page_of(read_rows(options.output))
    write_text(options.output.with_suffix(".md"), text)
    if options.show:
        print(text)


def measured(folder: Path, point: Point) -> dict[str, Any]:
    row = row_of(point["model"], point["budget"], folder)
    print(row["model"], row["budget"], row["outcome"], row["message"], file=sys.stderr, flush=True)
    return row


def row_of(name: str, budget: str, folder: Path) -> dict[str, Any]:
    """A model's row: its trainings, compared. The stock ones stay in the folder for the model's other budgets."""
    around = environment()
    versions = around["versions"] | {"python": around["python"]} | _version_of(name)
    row: dict[str, Any] = {
        "model": name,
        "budget": budget,
        "message": "",
        "warning": "",
        "commit": around["commit"][:12],
    }
    row["versions"] = " ".join(f"{package} {number}" for package, number in versions.items())
    files = [folder / f"{name} {number}.json" for number in range(4)]
    kinds = ("stock", "stock", "nudged")
    stock, *_ = (in_process(name, kind, budget, file, reused=True) for kind, file in zip(kinds, files, strict=False))
    if "error" in stock:
        return row | {"outcome": "stock failed", "message": stock["error"]}
    row |= {"stock_peak_bytes": _highest(stock["peaks"]), "machine": stock["machine"]}
    found = in_process(name, "rematerialized", budget, files[3])
    row |= {column: found[column] for column in COLUMNS if column in found}
    if "refused" in found or "error" in found:
        return row | {"outcome": "refused" if "refused" in found else "failed", "message": _message(found)}
    for prefix, other in (("stock_", files[1]), ("nudged_", files[2]), ("", files[3])):
        of_gradients, *of_weights = differences(*(file.with_suffix(".npz") for file in (files[0], other)))
        row |= {f"{prefix}gradients_difference": of_gradients, f"{prefix}weights_difference": of_weights[-1]}
        row |= {f"{prefix}parts": of_weights}
    row["part_differences"] = " ".join(f"{each:.0e}" for each in row["parts"])
    row["differs_after"] = find_first_apart(stock["parts"], row["parts"], row["stock_parts"])
    row |= {f"{part}_peak": max(peaks) / found["budget_bytes"] for part, peaks in found["peaks"].items() if peaks}
    row["first_loss_difference"] = abs(found["first_loss"] - stock["first_loss"]) / abs(stock["first_loss"])
    return row | {"outcome": "accepted"}


def _highest(peaks: dict[str, list[int]]) -> int:
    return max(peak for part in peaks.values() for peak in part)


def find_first_apart(parts: list[str], found: list[float], stock: list[float]) -> str:
    """The first part after which the weights are further from stock than rounding, and than two stock trainings."""
    apart = (part for part, one, other in zip(parts, found, stock, strict=True) if not one <= max(_ROUNDING, 2 * other))
    return next(apart, "")


def differences(one: Path, other: Path) -> list[float]:
    """How far apart two trainings are after the first step, by the optimizer's state, and after each part, by the
    model's variables.

    It is the largest difference of a variable's entry, over the largest entry of that variable in the first training;
    NaN where an entry is, and 1 where integers differ, such as the seeds of dropout. A weight that is all but zero
    counts as if its largest entry were a thousandth, a gradient as if it were a thousandth of the largest of all.
    """
    groups: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    with np.load(one) as expected, np.load(other) as actual:
        for key in expected.files:
            groups.setdefault(int(key.split()[0]), []).append((expected[key], actual[key]))
    return [_difference(pairs, of_gradients=group == 0) for group, pairs in sorted(groups.items())]


def _difference(pairs: list[tuple[np.ndarray, np.ndarray]], *, of_gradients: bool) -> float:
    reals = [(expected, actual) for expected, actual in pairs if expected.dtype.kind == "f"]
    others = [(expected, actual) for expected, actual in pairs if expected.dtype.kind != "f"]
    largest = [float(np.abs(expected).max()) for expected, _ in reals]
    least = _LEAST_ENTRY * (max(largest, default=0.0) if of_gradients else 1.0)
    apart = [float(np.abs(actual - expected).max()) for expected, actual in reals]
    shares = [each / max(size, least) if each else 0.0 for each, size in zip(apart, largest, strict=True)]
    return float(np.max([*shares, *(not np.array_equal(*pair) for pair in others), 0.0]))


def in_process(name: str, kind: str, budget: str, output: Path, *, reused: bool = False) -> dict[str, Any]:
    """What `trained` gives in a process of its own; {"error"} where that one ends otherwise or takes too long."""
    if reused and output.exists():
        return json.loads(output.read_text())
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


def trained(name: str, budget: str | None, weights_path: Path, *, nudged: bool = False) -> dict[str, Any]:
    """Trains a model in this process, stock without a budget, and writes its variables after each part.

    A nudged one begins with variables that differ in their last bit.
    """
    import keras

    import checkmate_tf

    entry = MODELS[name]
    keras.utils.set_random_seed(_SEED)
    model = entry.build()
    result: dict[str, Any] = {"machine": _machine()}
    with _warnings_recorded() as caught:
        if budget is not None:
            arguments = entry.plan_arguments(_BATCHES)
            figures, _ = planned(lambda: checkmate_tf.rematerialize(model, budget=budget, progress=False, **arguments))
            result |= figures
            if "refused" in result:
                return result
        # Not by `set_random_seed`: TensorFlow then drops its kernels, and with them what a SentencePiece tokenizer has.
        random.seed(_SEED)
        steps, batch = _Steps(model, nudged=nudged), entry.batch()
        steps.fit("fit", entry.fit_arguments(_BATCHES))
        if batch is not None:
            steps.train_on_batch("train_on_batch", batch)
        steps.fit("unknown_length", {"x": entry.of_unknown_length(_BATCHES), "epochs": 2})
        with busy_cores() if budget is not None else nullcontext():
            steps.fit("busy", entry.fit_arguments(2))
    result |= {"peaks": steps.peaks, "parts": list(steps.peaks), "first_loss": steps.first_loss}
    _write_arrays(weights_path, [steps.first_state, *steps.states])
    if budget is not None:
        result |= {"warning": _first_message(caught), **_figures_of_plans(model)}
        result |= {} if batch is None else _overhead_of_model(model, batch)
    return result


def trained_loop(name: str, budget: str | None, weights_path: Path, *, nudged: bool = False) -> dict[str, Any]:
    """Calls the step of a custom loop in this process, as `trained` trains a model.

    Peaks are all that was allocated since before planning, beside the variables and arguments, which the budget covers.
    """
    import keras

    import checkmate_tf

    entry = LOOPS[name]
    keras.utils.set_random_seed(_SEED)
    (step, trained_variables), arguments = entry.make(), entry.arguments()
    concrete = step.get_concrete_function(*arguments)
    if nudged:
        _nudge(trained_variables)
    counted = sum(each.shape.num_elements() * each.dtype.size for each in (*concrete.variables, *arguments))
    before, run, result = bytes_in_use(), step, {"machine": _machine()}
    peaks: dict[str, list[int]] = {"train_on_batch": [], "busy": []}
    losses, states = [], []
    with _warnings_recorded() as caught:
        if budget is not None:
            figures, run = planned(lambda: checkmate_tf.rewrite_function(concrete, budget=budget, progress=False))
            result |= figures
            if "refused" in result:
                return result
        for part, number in (("train_on_batch", _STEPS_ON_BATCH), ("busy", 2)):
            with busy_cores() if budget is not None and part == "busy" else nullcontext():
                for _ in range(number):
                    forget_peak()
                    losses.append(float(run(*arguments)))
                    peaks[part].append(counted + peak_bytes() - before)
                    states.append(_as_arrays(trained_variables))
    result |= {"peaks": peaks, "parts": list(peaks), "first_loss": losses[0]}
    _write_arrays(weights_path, [states[0], states[_STEPS_ON_BATCH - 1], states[-1]])
    if budget is not None:
        result |= {"warning": _first_message(caught), "num_plans": 1}
        result |= {"differing_updates": describe_updates([run.plan.planned.difference])}
        result |= _overhead_of(lambda: step(*arguments), lambda: run(*arguments))
    return result


def planned(make: Callable[[], Any]) -> tuple[dict[str, Any], Any]:
    """What the plan says, or {"refused"} with the message of an error of this package; and what was made."""
    from checkmate_tf.errors import CheckmateError

    started_s = time.perf_counter()
    try:
        made = make()
    except CheckmateError as error:
        refused = f"{type(error).__name__}: {error}"
        return {"refused": refused, "planning_s": time.perf_counter() - started_s}, None
    plan = getattr(made, "plan", made)
    figures = {
        "planning_s": time.perf_counter() - started_s,
        "planned_stock_peak_bytes": plan.stock_peak_bytes,
        "budget_bytes": plan.budget_bytes,
        "predicted_peak_bytes": plan.predicted_peak_bytes,
        "measured_peak_bytes": plan.measured_peak_bytes,
        "predicted_overhead": plan.overhead,
        "num_nodes": len(plan.graph.nodes),
        "num_recomputed": len(plan.recomputed),
    }
    return figures, made


class _Steps:
    """Trains a model part by part, and keeps each step's peak and the variables after each part."""

    def __init__(self, model: Any, *, nudged: bool) -> None:
        self.model = model
        self.is_to_be_nudged = nudged
        self.peaks: dict[str, list[int]] = {}
        self.states: list[list[np.ndarray]] = []
        self.first_state: list[np.ndarray] = []
        self.first_loss: float | None = None

    def fit(self, part: str, arguments: dict[str, Any]) -> None:
        import keras

        from checkmate_tf import MemoryReport

        peaks = self.peaks.setdefault(part, [])
        kept = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: self._keep_step(peaks, logs))
        # Keras makes the variables of some models only in `fit`, before this is called.
        begun = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: self._nudge_once())
        # An epoch's end reads the losses that Keras tracks, not those of the last step.
        self.model.fit(**arguments, verbose=0, callbacks=[MemoryReport(), begun, kept])
        self.states.append(_as_arrays(self.model.variables))

    def train_on_batch(self, part: str, batch: tuple[Any, ...]) -> None:
        from checkmate_tf import MemoryReport

        report, peaks = MemoryReport(), self.peaks.setdefault(part, [])
        report.set_model(self.model)
        report.on_train_begin()
        report.on_epoch_begin(0)
        for number in range(_STEPS_ON_BATCH):
            report.on_train_batch_begin(number)
            logs = self.model.train_on_batch(*batch, return_dict=True)
            report.on_train_batch_end(number, logs)
            self._keep_step(peaks, logs)
        self.states.append(_as_arrays(self.model.variables))

    def _nudge_once(self) -> None:
        if self.is_to_be_nudged:
            _nudge(self.model.variables)
            self.is_to_be_nudged = False

    def _keep_step(self, peaks: list[int], logs: dict[str, Any]) -> None:
        peaks.append(int(logs["peak_mib"] * 2**20))
        if self.first_loss is None:
            self.first_loss = float(logs["loss"])
            self.first_state = _as_arrays(self.model.optimizer.variables)


@contextmanager
def busy_cores() -> Iterator[subprocess.Popen[bytes]]:
    """Keeps all cores busy by a process of its own."""
    process = subprocess.Popen([sys.executable, "-c", _BUSY])
    time.sleep(_BUSY_BEFORE_S)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _warnings_recorded() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def _first_message(caught: list[warnings.WarningMessage]) -> str:
    """The first warning of this package's kind, but for those of peaks, which the table has."""
    messages = (str(each.message) for each in caught if each.category is RuntimeWarning)
    return next((message for message in messages if "above its budget of" not in message), "")[:_LONGEST_MESSAGE]


def _nudge(variables: Any) -> None:
    for variable in variables:
        variable.assign(nudge(variable.numpy()))


def _figures_of_plans(model: Any) -> dict[str, Any]:
    """How many shapes of batches were planned for, and what their plans say of updates."""
    installed = find_installed_step(model)
    assert installed is not None
    plans = [entry.planned for entry in installed.batches.entries.values() if entry.planned is not None]
    return {"num_plans": len(plans), "differing_updates": describe_updates([plan.difference for plan in plans])}


def describe_updates(differences: list[StepDifference | None]) -> str:
    """Says of how many weights a plan names the update, and of the one that differs most by how much, and stock's too.

    It is the plan that names the largest difference; "" where none names any.
    """
    named = [found.updates for found in differences if found is not None and found.updates]
    if not named:
        return ""
    updates: tuple[UpdateDifference, ...] = max(named, key=lambda each: each[0].share)
    most = updates[0]
    return f"{len(updates)}: {most.name} {most.share:.0e} (stock {most.stock_share:.0e})"


def _overhead_of_model(model: Any, batch: tuple[Any, ...]) -> dict[str, float]:
    """The same of a model whose rematerialized step has trained on that batch."""
    installed = find_installed_step(model)
    assert installed is not None

    def step(function: Any) -> None:
        model.train_function = function
        model.train_on_batch(*batch)

    stock = installed.batches.stock
    return _overhead_of(lambda: step(stock), lambda: step(installed))


def _overhead_of(stock: Callable[[], Any], rematerialized: Callable[[], Any]) -> dict[str, float]:
    """Runs both in turn, and tells by how much more time the second takes, by the clock and in CPU seconds."""
    for run in (stock, rematerialized):
        run()
    pairs = [(_seconds_of(stock), _seconds_of(rematerialized)) for _ in range(_PAIRS)]
    wall, cpu = ([other[kind] / one[kind] - 1 for one, other in pairs] for kind in range(2))
    return {
        "stock_step_s": statistics.median(one[0] for one, _ in pairs),
        "measured_overhead": statistics.median(wall),
        "cpu_overhead": statistics.median(cpu),
    }


def _seconds_of(run: Callable[[], Any]) -> tuple[float, float]:
    started, cpu_started = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - started, time.process_time() - cpu_started


def _as_arrays(variables: Any) -> list[np.ndarray]:
    """Copies of variables, with real numbers in float64."""
    arrays = (np.array(each.numpy()) for each in variables)
    return [each.astype("float64") if "float" in each.dtype.name else each for each in arrays if each.size]


def _write_arrays(path: Path, groups: list[list[np.ndarray]]) -> None:
    np.savez(path, **{f"{group} {index}": each for group, part in enumerate(groups) for index, each in enumerate(part)})


def _machine() -> str:
    from checkmate_tf.profiling.device import find_default_device, make_device_key

    return make_device_key(find_default_device()).device


def _message(found: dict[str, Any]) -> str:
    return (found.get("refused") or found["error"])[:_LONGEST_MESSAGE]


def _version_of(name: str) -> dict[str, str]:
    package = MODELS[name].needs if name in MODELS else ""
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
    apart = (
        "gradients_difference",
        "stock_gradients_difference",
        "weights_difference",
        "stock_weights_difference",
        "nudged_weights_difference",
        "first_loss_difference",
    )
    return (
        row["model"],
        row["budget"],
        _what(row["model"]),
        outcome,
        shown("planning_s", ".0f"),
        *(shown(column, ".1f", 2**20) for column in mebibytes),
        *(shown(f"{part}_peak", ".3f") for part in PARTS),
        *(shown(column, ".0e") for column in apart),
        row["differs_after"] or "",
        row.get("differing_updates") or "",
        *(shown(column, ".1%") for column in ("predicted_overhead", "measured_overhead", "cpu_overhead")),
        shown("stock_step_s", ".2f"),
        shown("num_recomputed", ".0f"),
        shown("num_plans", ".0f"),
        _on_one_line(row["warning"] or ""),
    )


def _what(name: str) -> str:
    """What a model does, and which public example it is written after."""
    entry = MODELS.get(name) or LOOPS.get(name)
    if entry is None:
        return ""
    return f"{entry.what} ({entry.after})" if entry.after else entry.what


def _on_one_line(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


_HEADERS = (
    "model",
    "of the peak",
    "feature",
    "outcome",
    "planning s",
    "stock",
    "stock in planning",
    "budget",
    "predicted",
    "measured",
    "fit",
    "train_on_batch",
    "unknown length",
    "busy",
    "gradients",
    "of two stock",
    "weights",
    "of two stock",
    "last bit",
    "first loss",
    "differs after",
    "named by the plan",
    "overhead",
    "in pairs",
    "CPU",
    "stock step s",
    "recomputed",
    "plans",
    "warning",
)
_PAGE_HEAD = f"""# Small models, stock and rematerialized

Generated by `{COMMAND}`. Each model trains from the same seeds, twice stock and once after `rematerialize`: `fit` on
two and a half batches, `train_on_batch` three times, `fit` for two epochs on a generator of unknown length, and `fit`
beside a process that keeps all cores busy. A custom loop, rewritten by `rewrite_function`, has no `fit`. Rows without
"plans" were measured differently: ten equal batches through `fit`, then `train_on_batch` four times.

- Stock, stock in planning, budget, predicted, measured: peaks in MiB, of the stock steps, of the stock step in
  planning, and of the plan. The budget is a share of the stock peak in planning.
- Fit, train_on_batch, unknown length, busy: the highest peak of a rematerialized step divided by the budget, over all
  steps of that part, including the last, smaller ones, as `MemoryReport` reports it.
- Gradients: the largest difference of the optimizer's state from that of the stock training, after the first step. It
  is relative to the largest entry of its variable, or to a thousandth of the largest entry of all if that is larger.
  With momentum, the state is the gradient times the learning rate. Weights: the same for all variables after the last
  step; 1 if integers such as seeds differ. The column after each shows the same for two stock trainings, and "last
  bit" for two stock trainings, one of them from variables that differ in their last bit. First loss: its relative
  difference. Adam takes steps of full size along gradients that are only rounding errors, such as that of a bias before
  a normalization, so weights can differ by the size of a step where gradients differ by rounding.
- Differs after: the first part after which the weights differ by more than rounding and more than those of two stock
  trainings. Named by the plan: how many weights `plan.differing_updates` lists, and the one whose first update differs
  most, as a share of that update. In brackets stands the same share for two stock steps, one of them from variables
  that differ in their last bit. If the plan names none and "last bit" is as large as the difference of the weights,
  training amplified rounding in later steps. Both columns are empty for rows that were measured without them.
- Overhead: that of the plan; then the measured one, which is the median of the ratios of rematerialized to stock steps
  that ran in turn, by the clock and in CPU seconds.
- Recomputed: nodes that are computed more than once. Plans: number of batch shapes that were planned. Warning: the
  first one of planning and training.
"""


if __name__ == "__main__":
    main()
