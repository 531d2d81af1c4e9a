"""Keras's own tests of `fit` and friends, run with every model rematerialized.

    pip download --no-deps --no-binary keras "keras==3.15.*" && tar xf keras-3.15*.tar.gz
    python -m experiments.keras_trainer_tests keras-3.15.1 [--output FILE]

Every test runs twice, stock and rematerialized: `compile` is wrapped so that the first `fit` or `train_on_batch` after
it rematerializes the model for its data, every forward node recomputed that can be. A model that is refused trains
stock, and the refusal is counted. A test that fails in both runs says nothing about rematerialization.
"""

import argparse
import collections
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

FILES = (
    "trainers/trainer_test.py",
    "trainers/compile_utils_test.py",
    "models/model_test.py",
    "models/sequential_test.py",
    "models/functional_test.py",
    "callbacks/early_stopping_test.py",
    "callbacks/backup_and_restore_test.py",
    "callbacks/swap_ema_weights_test.py",
    "callbacks/terminate_on_nan_test.py",
    "callbacks/reduce_lr_on_plateau_test.py",
    "callbacks/learning_rate_scheduler_test.py",
)
RESULT = Path(__file__).parent / "results" / "keras_users" / "trainer_tests.json"


class Recorder:
    """A pytest plugin: outcome of each test, models rewritten and refused in it."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self.rewritten: collections.Counter[str] = collections.Counter()
        self.refused: dict[str, list[str]] = collections.defaultdict(list)
        self.current = ""

    def pytest_runtest_setup(self, item: Any) -> None:
        self.current = _test_name(item.nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = _test_name(report.nodeid)
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[name] = report.outcome
        if report.outcome == "failed":
            self.reasons[name] = str(report.longrepr).strip().splitlines()[-1][:300]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=Path, help="the unpacked source of Keras")
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--files", nargs="*", default=list(FILES))
    options = parser.parse_args()
    stock, other = Recorder(), Recorder()
    with tempfile.TemporaryDirectory() as folder:
        tests = [str(_copied(options.source / "keras" / "src" / name, Path(folder))) for name in options.files]
        _run(tests, stock)
        _wrap_compile(other)
        _run(tests, other)
    summary = summarize(stock, other)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(summary, indent=1))
    print(json.dumps(summary, indent=1))


def summarize(stock: Recorder, other: Recorder) -> dict[str, Any]:
    """How many ran and passed, and why the rest did not."""
    import keras
    import tensorflow as tf

    ran = [name for name, outcome in other.outcomes.items() if outcome != "skipped"]
    trained = [name for name in ran if other.rewritten[name]]
    worse = [name for name in ran if other.outcomes[name] == "failed" and stock.outcomes.get(name) == "passed"]
    refusals = collections.Counter(reason for reasons in other.refused.values() for reason in reasons)
    return {
        "versions": {"keras": keras.__version__, "tensorflow": tf.__version__, "python": sys.version.split()[0]},
        "run": len(ran),
        "skipped": len(other.outcomes) - len(ran),
        "passed": sum(other.outcomes[name] == "passed" for name in ran),
        "passed_stock": sum(outcome == "passed" for outcome in stock.outcomes.values()),
        "run_with_a_rewritten_model": len(trained),
        "passed_with_a_rewritten_model": sum(other.outcomes[name] == "passed" for name in trained),
        "fail_only_rematerialized": {name: other.reasons[name] for name in worse},
        "fail_in_both": [name for name in ran if other.outcomes[name] == "failed" and name not in worse],
        "refused": dict(refusals.most_common()),
    }


def _wrap_compile(recorder: Recorder) -> None:
    import keras

    trainer = keras.Model
    compile_, fit, on_batch = trainer.compile, trainer.fit, trainer.train_on_batch

    def compile_wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = compile_(self, *args, **kwargs)
        self.__dict__["_to_rematerialize"] = True
        return result

    def fit_wrapped(self: Any, x: Any = None, y: Any = None, batch_size: Any = None, *args: Any, **kwargs: Any) -> Any:
        _rematerialize(self, recorder, x, y, kwargs.get("sample_weight"), batch_size)
        return fit(self, x, y, batch_size, *args, **kwargs)

    def on_batch_wrapped(self: Any, x: Any, y: Any = None, sample_weight: Any = None, *args: Any, **kwargs: Any) -> Any:
        _rematerialize(self, recorder, x, y, sample_weight, None)
        return on_batch(self, x, y, sample_weight, *args, **kwargs)

    trainer.compile, trainer.fit, trainer.train_on_batch = compile_wrapped, fit_wrapped, on_batch_wrapped


def _rematerialize(model: Any, recorder: Recorder, x: Any, y: Any, sample_weight: Any, batch_size: Any) -> None:
    import keras
    import tensorflow as tf

    import checkmate_tf
    from checkmate_tf.errors import CheckmateError
    from tests.keras_users.compare import RecomputeForward

    if not model.__dict__.pop("_to_rematerialize", False):
        return
    whole = isinstance(x, (tf.data.Dataset, keras.utils.PyDataset))
    if not whole and not hasattr(keras.tree.flatten(x)[0], "shape"):
        recorder.refused[recorder.current].append(f"data of type {type(x).__name__} is not looked into")
        return
    try:
        checkmate_tf.rematerialize(
            model,
            data=x if whole else (x, y, sample_weight),
            batch_size=None if whole else min(batch_size or 32, len(keras.tree.flatten(x)[0])),
            budget="1000%",
            solver=RecomputeForward(),
            costs="flops",
            measure=False,
        )
        recorder.rewritten[recorder.current] += 1
    except CheckmateError as error:
        recorder.refused[recorder.current].append(f"{type(error).__name__}: {error}"[:200])
    except Exception as error:  # the test's own point may be that this model cannot train
        recorder.refused[recorder.current].append(f"{type(error).__name__}: {error}"[:200])


def _run(tests: list[str], recorder: Recorder) -> None:
    import pytest

    pytest.main(
        ["-q", "--import-mode=importlib", "-p", "no:cacheprovider", "--no-header", "--tb=line", *tests], [recorder]
    )


def _copied(source: Path, folder: Path) -> Path:
    target = folder / f"{source.parent.name}_{source.name}"
    shutil.copy(source, target)
    return target


def _test_name(nodeid: str) -> str:
    return nodeid.rpartition("/")[2]


if __name__ == "__main__":
    main()
