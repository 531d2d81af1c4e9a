"""What Keras users do, rematerialized against stock: a row each, and the largest difference after five steps.

    python -m experiments.keras_users [--output DIR]

Every forward node that can be is computed twice. A row's result is kept as soon as it is there: run it again to go
on where it stopped.
"""

import argparse
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from experiments.running import RESULTS_FOLDER

SECTIONS = ("training loop", "models", "optimizers", "life cycle", "custom training", "distribution", "tools")
RESULTS = RESULTS_FOLDER / "keras_users"

# Rows that are no comparison of two plain trainings: what the test shows.
OTHER_ROWS = (
    ("training loop", "several batch sizes side by side", "test_training.py::test_several_batch_sizes_side_by_side"),
    ("training loop", "run_eagerly (warns, stock)", "test_training.py::test_run_eagerly_warns_and_trains_stock"),
    (
        "training loop",
        "stock step above the budget (warns)",
        "test_training.py::test_stock_step_above_the_budget_is_said",
    ),
    (
        "life cycle",
        "compiled again (planned again)",
        "test_training.py::test_changed_model_is_planned_again[_recompile-",
    ),
    (
        "life cycle",
        "changed trainable (planned again)",
        "test_training.py::test_changed_model_is_planned_again[_freeze-",
    ),
    (
        "life cycle",
        "changed dtype policy (planned again)",
        "test_training.py::test_changed_model_is_planned_again[_lower_precision-",
    ),
    ("life cycle", "save, load_model, save_weights, clone, pickle", "test_training.py::test_save_load_clone_pickle"),
    ("life cycle", "ModelCheckpoint, learning-rate callbacks", "test_training.py::test_callbacks"),
    ("life cycle", "BackupAndRestore", "keras_users/test_tools.py::test_interrupted_training_is_resumed"),
    ("life cycle", "restore", "test_training.py::test_restore"),
    ("life cycle", "two models at once, in two threads", "test_training.py::test_two_models_in_two_threads"),
    (
        "custom training",
        "train_step set on the instance",
        "test_training.py::test_instance_level_train_step_is_rewritten_and_put_back",
    ),
    ("custom training", "rewrite_function, GAN with two optimizers", "test_functions.py::test_gan_with_two_optimizers"),
    (
        "distribution",
        "MirroredStrategy, fit on two replicas",
        "keras_users/test_distribution.py::test_mirrored_fit_equals_stock",
    ),
    *(
        (
            "distribution",
            f"MirroredStrategy, {what} (refused before training)",
            f"keras_users/test_distribution.py::test_mirrored_refusals[{what}-",
        )
        for what in ("synchronized BatchNorm", "own train_step", "XLA", "odd batch")
    ),
    (
        "distribution",
        "MultiWorkerMirroredStrategy, custom loop, two processes",
        "keras_users/test_distribution.py::test_two_workers_with_a_custom_loop",
    ),
    (
        "tools",
        "TensorBoard and profiler (copies named recompute_k)",
        "keras_users/test_tools.py::test_tensorboard_and_the_profiler_see_the_copies",
    ),
    (
        "tools",
        "KerasTuner (infeasible budgets are failed trials)",
        "keras_users/test_tools.py::test_keras_tuner_goes_on_after_an_infeasible_budget",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "rows.json"
    results = json.loads(path.read_text()) if path.exists() else _header()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

    import keras

    from experiments.keras_users.compare import compare
    from experiments.keras_users.rows import ROWS

    for row in ROWS:
        if row.name in results["rows"]:
            continue
        keras.backend.clear_session()
        entry: dict[str, Any] = {"section": row.section, "tolerance": row.tolerance}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                difference = compare(row)
            entry |= {
                "largest_difference": difference.largest,
                "integers_equal": difference.exact_integers,
                "recomputed_nodes": difference.recomputed_nodes,
                "works": difference.largest <= row.tolerance and difference.exact_integers,
            }
        except Exception as error:  # a row that raises is a result, too
            entry |= {"works": False, "error": f"{type(error).__name__}: {error}"[:300]}
        results["rows"][row.name] = entry
        path.write_text(json.dumps(results, indent=1))
    results["tests"] = run_tests([test for _, _, test in OTHER_ROWS])
    path.write_text(json.dumps(results, indent=1))
    (options.output / "rows.md").write_text(table(results) + "\n")
    print(table(results))


def table(results: dict[str, Any]) -> str:
    """The rows in markdown."""
    from tabulate import tabulate

    rows = [
        (entry["section"], name, *_shown(entry), f"test_equals_stock[{name}]")
        for name, entry in results["rows"].items()
    ]
    rows += [
        (section, name, *_shown(results["tests"].get(test, {"works": False})), test.rstrip("-"))
        for section, name, test in OTHER_ROWS
    ]
    rows.sort(key=lambda row: SECTIONS.index(row[0]))
    headers = ["section", "row", "works", "largest relative difference after 5 steps", "test"]
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def page() -> str:
    """The page of the results that are kept."""
    return table(json.loads((RESULTS / "rows.json").read_text())) + "\n"


def _shown(entry: dict[str, Any]) -> tuple[str, str]:
    difference = entry.get("largest_difference")
    return "yes" if entry["works"] else "no", entry.get("error", "") if difference is None else f"{difference:.1e}"


class Differences:
    """A pytest plugin: outcome of each test, and the largest difference that it computed."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, Any]] = {}
        self.largest: float | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Any:
        self.largest = None
        known = getattr(item.module, "relative_difference", None)
        if known is None:
            return (yield)

        def recorded(expected: Any, found: Any) -> float:
            difference = known(expected, found)
            self.largest = max(self.largest or 0.0, difference)
            return difference

        item.module.relative_difference = recorded
        try:
            return (yield)
        finally:
            item.module.relative_difference = known

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call":
            name = report.nodeid.removeprefix("tests/")
            difference = dict(report.user_properties).get("difference", self.largest)
            self.tests[name] = {"works": report.outcome == "passed", "largest_difference": difference}


def run_tests(names: list[str]) -> dict[str, Any]:
    """Outcomes and differences of tests, by the name they were asked by: the name of the test, or how it begins."""
    plugin = Differences()
    files = sorted({f"tests/{name.partition('::')[0]}" for name in names})
    wanted = " or ".join(sorted({name.partition("::")[2].partition("[")[0] for name in names}))
    pytest.main(["-q", "--import-mode=importlib", "-p", "no:cacheprovider", *files, "-k", wanted], [plugin])
    found = {name: [test for test in plugin.tests if test == name or test.startswith(name)] for name in names}
    return {name: plugin.tests[tests[0]] for name, tests in found.items() if tests}


def _header() -> dict[str, Any]:
    import keras
    import tensorflow as tf

    from checkmate_tf.profiling.device import find_default_device, make_device_key

    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    return {
        "machine": str(make_device_key(find_default_device())),
        "versions": {"tensorflow": tf.__version__, "keras": keras.__version__, "python": sys.version.split()[0]},
        "commit": commit,
        "seed": 7,
        "rows": {},
    }


if __name__ == "__main__":
    main()
