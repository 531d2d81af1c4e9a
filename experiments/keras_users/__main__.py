"""What Keras users do, rematerialized against stock: a row each, and the largest difference after five steps.

    python -m experiments.keras_users [--only ROW ...] [--output FILE.csv]

Every forward node that can be is computed twice. Each row has a process of its own. Rows that are no comparison of two
plain trainings are tests, which pytest runs.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from experiments.running import RESULTS_FOLDER, Point, Row, made_with, read_points, read_rows, run_apart

RESULTS = RESULTS_FOLDER / "keras_users.csv"
COLUMNS = (
    "section", "row", "test", "works", "largest_difference", "tolerance", "integers_equal", "recomputed_nodes", "seed",
)  # fmt: skip
SECTIONS = ("training loop", "models", "optimizers", "life cycle", "custom training", "distribution", "tools")

# Rows that are no comparison of two plain trainings: what the test shows.
OTHER_ROWS = (
    (
        "training loop",
        "several batch sizes side by side",
        "training/test_training.py::test_several_batch_sizes_side_by_side",
    ),
    (
        "training loop",
        "run_eagerly (refused; set later, it warns and trains stock)",
        "training/test_training.py::test_eager_models_are_refused_at_once_and_train_stock_when_they_become_so",
    ),
    (
        "training loop",
        "a larger batch that no plan fits (warns, or is refused)",
        "training/test_training.py::test_a_larger_batch_that_no_plan_fits_is_said_once_or_raised",
    ),
    (
        "life cycle",
        "compiled again (planned again)",
        "training/test_training.py::test_changed_model_is_planned_again[_recompile-",
    ),
    (
        "life cycle",
        "changed trainable (planned again)",
        "training/test_training.py::test_changed_model_is_planned_again[_freeze-",
    ),
    (
        "life cycle",
        "changed dtype policy (planned again)",
        "training/test_training.py::test_changed_model_is_planned_again[_lower_precision-",
    ),
    (
        "life cycle",
        "save, load_model, save_weights, clone, pickle",
        "training/test_training.py::test_save_load_clone_pickle",
    ),
    ("life cycle", "ModelCheckpoint, learning-rate callbacks", "training/test_training.py::test_callbacks"),
    ("life cycle", "BackupAndRestore", "keras_users/test_tools.py::test_interrupted_training_is_resumed"),
    ("life cycle", "restore", "training/test_training.py::test_restore"),
    ("life cycle", "two models at once, in two threads", "training/test_training.py::test_two_models_in_two_threads"),
    (
        "custom training",
        "train_step set on the instance",
        "training/test_training.py::test_instance_level_train_step_is_rewritten_and_put_back",
    ),
    (
        "custom training",
        "rewrite_function, GAN with two optimizers",
        "training/test_functions.py::test_gan_with_two_optimizers",
    ),
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
SEED = 7

_MODULE = "experiments.keras_users.__main__"


def points(only: Iterable[str] | None = None) -> list[Point]:
    """The comparisons, and the tests."""
    from experiments.keras_users.rows import ROWS

    found = [{"section": row.section, "row": row.name, "test": f"test_equals_stock[{row.name}]"} for row in ROWS]
    found += [{"section": section, "row": name, "test": test} for section, name, test in OTHER_ROWS]
    wanted = None if only is None else set(only)
    return [point for point in found if wanted is None or point["row"] in wanted]


def compute(point: Point) -> dict[str, Any]:
    """A row: whether the two trainings agree, or the test passes, and by how much they differ."""
    import warnings

    if (point["section"], point["row"], point["test"]) in OTHER_ROWS:
        return {**run_test(point["test"]), "seed": SEED}
    from experiments.keras_users.compare import compare
    from experiments.keras_users.rows import ROWS

    row = next(row for row in ROWS if row.name == point["row"])
    known = {"tolerance": row.tolerance, "seed": SEED}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            difference = compare(row)
    except Exception as error:  # a row that raises is a result, too
        return {**known, "works": False, "error": f"{type(error).__name__}: {error}"[:300]}
    return {
        **known,
        "works": difference.largest <= row.tolerance and difference.exact_integers,
        "largest_difference": difference.largest,
        "integers_equal": difference.exact_integers,
        "recomputed_nodes": difference.recomputed_nodes,
    }


def run_test(name: str) -> dict[str, Any]:
    """Outcome and difference of a test by its name, or how that begins."""
    plugin = Differences()
    file, _, function = name.partition("::")
    options = ["-q", "--import-mode=importlib", "-p", "no:cacheprovider", f"tests/{file}"]
    pytest.main([*options, "-k", function.partition("[")[0]], [plugin])
    found = [result for test, result in plugin.tests.items() if test.startswith(name)]
    return found[0] if found else {"works": False, "error": f"there is no test {name}"}


def table(rows: Sequence[Row]) -> str:
    """The rows in markdown."""
    from tabulate import tabulate

    lines = [
        (row["section"], row["row"], *_shown(row), row["test"].rstrip("-"))
        for row in sorted(rows, key=lambda row: SECTIONS.index(row["section"]))
    ]
    headers = ["section", "row", "works", "largest relative difference after 5 steps", "test"]
    return tabulate(lines, headers, tablefmt="github", disable_numparse=True)


def _shown(row: Row) -> tuple[str, str]:
    difference = row["largest_difference"]
    return "yes" if row["works"] == "True" else "no", f"{float(difference):.1e}" if difference else row["error"]


def page() -> str:
    """The page of the results that are kept, with those of Keras's own tests and of replicas."""
    from experiments import keras_distributed, keras_trainer_tests

    rows, peaks = read_rows(RESULTS), read_rows(keras_distributed.RESULTS)
    (tests,) = read_points(keras_trainer_tests.RESULTS)[:1] or [None]
    return _PAGE.format(
        table=table(rows),
        made_with=made_with(rows),
        distributed=keras_distributed.table(peaks),
        distributed_made_with=made_with(peaks),
        trainer_tests=keras_trainer_tests.table(tests["result"]) if tests else "",
    )


_PAGE = """# Common uses of Keras, rematerialized and stock

Written by `python -m experiments.pages keras_users.md`.

## Rows

`python -m experiments.keras_users`, kept in `keras_users.csv`. The rematerialized step computes every recomputable
forward node twice.

{table}

{made_with}

## The budget on each replica

`python -m experiments.keras_distributed`, kept in `keras_distributed.csv`. Peaks are in MiB, by the allocator of a
process. Two replicas in one process share an allocator, so its peak has to stay within the sum of both budgets.

{distributed}

{distributed_made_with}

## Keras's own tests of training

`python -m experiments.keras_trainer_tests`, kept in `keras_trainer_tests.jsonl`. A test that fails in both runs says
nothing about rematerialization.

{trainer_tests}
"""


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", metavar="ROW", help="these rows instead of all")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    print(table(run_apart(_MODULE, points(options.only), options.output, COLUMNS)))


if __name__ == "__main__":
    main()
