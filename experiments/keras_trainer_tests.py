"""Keras's own tests of `fit` and friends, run with every model rematerialized.

    python -m experiments.keras_trainer_tests [--files NAME ...] [--output FILE.jsonl]

Keras's package carries its tests, the same files as its source distribution; one of them imports jax. Every test runs
twice, stock and rematerialized: `compile` is wrapped so that the first `fit` or `train_on_batch` after it
rematerializes the model for its data, every forward node recomputed that can be. A model that is refused trains
stock, and the refusal is counted. A test that fails in both runs says nothing about rematerialization.
"""

import argparse
import collections
import itertools
import json
import shutil
import tempfile
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.running import RESULTS_FOLDER, Point, computed_apart, run_points

FILES = (
    "trainers/trainer_test.py",
    "trainers/compile_utils_test.py",
    "models/model_test.py",
    "models/sequential_test.py",
    "models/functional_test.py",
    "models/cloning_test.py",
    "callbacks/early_stopping_test.py",
    "callbacks/backup_and_restore_test.py",
    "callbacks/swap_ema_weights_test.py",
    "callbacks/terminate_on_nan_test.py",
    "callbacks/reduce_lr_on_plateau_test.py",
    "callbacks/learning_rate_scheduler_test.py",
    "callbacks/callback_test.py",
    "callbacks/csv_logger_test.py",
    "callbacks/lambda_callback_test.py",
    "callbacks/model_checkpoint_test.py",
    "callbacks/monitor_callback_test.py",
    "callbacks/tensorboard_test.py",
    "distillation/distiller_test.py",
    "backend/tensorflow/distribute_test.py",
    "optimizers/multi_optimizer_test.py",
)
RESULTS = RESULTS_FOLDER / "keras_trainer_tests.jsonl"
PARTS = Path(tempfile.gettempdir()) / "keras_trainer_tests"


class Recorder:
    """A pytest plugin: outcome of each test, models rewritten and refused in it; kept in a file after each test.

    Tests of which the file tells the outcome are not run again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tests: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
        self.current: dict[str, Any] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if "outcome" not in self.tests.get(_test_name(item.nodeid), {})]

    def pytest_runtest_setup(self, item: Any) -> None:
        self.current = {"rewritten": 0, "refused": []}
        self.tests[_test_name(item.nodeid)] = self.current

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.current["outcome"] = report.outcome
        if report.outcome == "failed":
            self.current["reason"] = str(report.longrepr).strip().splitlines()[-1][:300]
        self.save()

    def save(self) -> None:
        self.path.write_text(json.dumps(self.tests))


def points(files: Sequence[str] = FILES) -> list[Point]:
    """One point: the files together."""
    return [{"files": sorted(files)}]


def compute(point: Point) -> dict[str, Any]:
    """Both runs of all files, each file in processes of its own; what ran before a stop is kept in `PARTS`."""
    PARTS.mkdir(parents=True, exist_ok=True)
    outcomes: dict[str, dict[str, Any]] = {"stock": {}, "rematerialized": {}}
    for name in point["files"]:
        for way, tests in outcomes.items():
            part = PARTS / f"{Path(name).stem}.{way}.json"
            computed_apart("experiments.keras_trainer_tests:run_file", {"file": name, "way": way, "part": str(part)})
            tests |= {f"{name}::{test}": result for test, result in json.loads(part.read_text()).items()}
    shutil.rmtree(PARTS)
    return summarize(outcomes["stock"], outcomes["rematerialized"])


def table(summary: dict[str, Any]) -> str:
    """What is in the summary, in markdown."""
    lines = [f"- {key.replace('_', ' ')}: {summary[key]}" for key in _COUNTS]
    for key in ("fail_only_rematerialized", "fail_in_both"):
        lines += [f"- {key.replace('_', ' ')}: {len(summary[key])}"]
        lines += [f"  - `{test}`: {reason.removeprefix('E   ')}" for test, reason in summary[key].items()]
    lines += [f"- rematerialization was refused {sum(summary['refused'].values())} times; those models trained stock"]
    return "\n".join(lines)


_COUNTS = (
    "run", "skipped", "passed", "passed_stock", "run_with_a_rewritten_model", "passed_with_a_rewritten_model",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", nargs="*", default=list(FILES), choices=FILES, metavar="NAME")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    for entry in run_points(points(options.files), compute, options.output):
        print(table(entry["result"]))


def summarize(stock: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """How many ran and passed, and why the rest did not."""

    def passed(tests: dict[str, Any], names: Any) -> list[str]:
        return [name for name in names if tests.get(name, {}).get("outcome") == "passed"]

    ran = [name for name, test in other.items() if test["outcome"] != "skipped"]
    failed = [name for name in ran if other[name]["outcome"] == "failed"]
    worse = passed(stock, failed)
    rewritten = [name for name in ran if other[name]["rewritten"]]
    refusals = collections.Counter(reason for test in other.values() for reason in test["refused"])
    return {
        "run": len(ran),
        "skipped": len(other) - len(ran),
        "passed": len(passed(other, ran)),
        "passed_stock": len(passed(stock, stock)),
        "run_with_a_rewritten_model": len(rewritten),
        "passed_with_a_rewritten_model": len(passed(other, rewritten)),
        "fail_only_rematerialized": {name: other[name]["reason"] for name in worse},
        "fail_in_both": {name: other[name]["reason"] for name in failed if name not in worse},
        "refused": dict(refusals.most_common()),
    }


def _wrap_compile(recorder: Recorder) -> None:
    import keras
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    trainer: Any = TensorFlowTrainer  # many of the tests' models are a layer and this, and no keras.Model
    compile_, fit, on_batch = trainer.compile, trainer.fit, trainer.train_on_batch

    def compile_wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = compile_(self, *args, **kwargs)
        self.__dict__["_to_rematerialize"] = True
        return result

    def fit_wrapped(self: Any, x: Any = None, y: Any = None, batch_size: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(x, types.GeneratorType) and (first := next(x, None)) is not None:
            x = itertools.chain([first], x)
            first_x, first_y, first_weight = keras.utils.unpack_x_y_sample_weight(first)
            _rematerialize(self, recorder, first_x, first_y, first_weight, None)
            return fit(self, (batch for batch in x), y, batch_size, *args, **kwargs)
        _rematerialize(self, recorder, x, y, kwargs.get("sample_weight"), batch_size)
        return fit(self, x, y, batch_size, *args, **kwargs)

    def on_batch_wrapped(self: Any, x: Any, y: Any = None, sample_weight: Any = None, *args: Any, **kwargs: Any) -> Any:
        _rematerialize(self, recorder, x, y, sample_weight, None)
        return on_batch(self, x, y, sample_weight, *args, **kwargs)

    # Where it is defined: Keras does not compile a loaded or cloned model again whose class has another `compile`.
    owner = next(cls for cls in trainer.__mro__ if "compile" in vars(cls))
    owner.compile = compile_wrapped
    trainer.fit, trainer.train_on_batch = fit_wrapped, on_batch_wrapped


def _rematerialize(model: Any, recorder: Recorder, x: Any, y: Any, sample_weight: Any, batch_size: Any) -> None:
    import keras
    import tensorflow as tf

    import checkmate_tf
    from experiments.keras_users.compare import RecomputeForward

    if not model.__dict__.pop("_to_rematerialize", False):
        return
    whole = isinstance(x, (tf.data.Dataset, keras.utils.PyDataset))
    if not whole and not hasattr(keras.tree.flatten(x)[0], "shape"):
        recorder.current["refused"].append(f"data of type {type(x).__name__} is not looked into")
        return
    try:
        checkmate_tf.rematerialize(
            model,
            data=x if whole else (x, y, sample_weight),
            batch_size=None if whole else min(batch_size or 32, len(keras.tree.flatten(x)[0])),
            budget="1000%",
            options=checkmate_tf.Options(solver=RecomputeForward(), costs="flops"),
            measure=False,
        )
        recorder.current["rewritten"] += 1
    except Exception as error:  # a test's own point may be that this model cannot train
        recorder.current["refused"].append(f"{type(error).__name__}: {error}"[:200])


def run_file(point: Point) -> None:
    """Runs the tests of a file one way; the part that the point names gets their outcomes."""
    import pytest

    recorder = Recorder(Path(point["part"]))
    if point["way"] == "rematerialized":
        _wrap_compile(recorder)
    options = ["-q", "--import-mode=importlib", "-p", "no:cacheprovider", "--no-header", "--tb=line"]
    with tempfile.TemporaryDirectory() as folder:
        pytest.main([*options, str(_copied(_keras_tests() / point["file"], Path(folder)))], [recorder])
    recorder.save()


def _keras_tests() -> Path:
    import keras.src

    return Path(keras.src.__file__).parent


def _copied(source: Path, folder: Path) -> Path:
    target = folder / f"{source.parent.name}_{source.name}"
    shutil.copy(source, target)
    return target


def _test_name(nodeid: str) -> str:
    return nodeid.partition("::")[2]


if __name__ == "__main__":
    main()
