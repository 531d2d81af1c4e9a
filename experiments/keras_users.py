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

RESULTS = Path(__file__).parent / "results" / "keras_users"

# Rows that are no comparison of two plain trainings: what the test shows.
OTHER_ROWS = (
    ("training loop", "several batch sizes side by side", "test_several_batch_sizes_side_by_side"),
    ("training loop", "run_eagerly (warns, stock step)", "test_run_eagerly_warns_and_trains_stock"),
    ("training loop", "stock step above the budget (warns)", "test_stock_step_above_the_budget_is_said"),
    ("life cycle", "compile again, changed trainable (planned again)", "test_changed_model_is_planned_again"),
    ("life cycle", "save, load_model, save_weights, clone_model, pickle", "test_save_load_clone_pickle"),
    ("life cycle", "ModelCheckpoint, BackupAndRestore, schedulers, TensorBoard", "test_callbacks"),
    ("life cycle", "restore", "test_restore"),
    ("life cycle", "two models at once, threads", "test_two_models_in_two_threads"),
    ("life cycle", "jit_compile=True (refused before training)", "test_recompiled_with_xla_is_refused_before_training"),
    ("custom training", "train_step set on the instance", "test_instance_level_train_step_is_rewritten_and_put_back"),
    ("custom training", "rewrite_function, GAN with two optimizers", "test_gan_with_two_optimizers"),
    ("distribution", "MirroredStrategy (refused before training)", "test_distributed_model_is_refused"),
    (
        "tools",
        "profiler: original names, copies named recompute_k",
        "test_original_names_are_kept_and_copies_are_named",
    ),
    (
        "tools",
        "KerasTuner: InfeasibleBudgetError with the least budget",
        "test_infeasible_budget_names_the_least_known",
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

    from tests.keras_users.compare import compare
    from tests.keras_users.rows import ROWS

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
    (options.output / "rows.md").write_text(table(results) + "\n")
    print(table(results))


def table(results: dict[str, Any]) -> str:
    """The rows in markdown."""
    from tabulate import tabulate

    rows = [
        (
            entry["section"],
            name,
            "yes" if entry["works"] else "no",
            f"{entry['largest_difference']:.1e}" if "largest_difference" in entry else entry.get("error", ""),
            f"test_equals_stock[{name}]",
        )
        for name, entry in results["rows"].items()
    ]
    rows += [(section, name, "tested", "", test) for section, name, test in OTHER_ROWS]
    headers = ["section", "row", "works", "largest relative difference after 5 steps", "test"]
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def _header() -> dict[str, Any]:
    import keras
    import tensorflow as tf

    from checkmate_tf.profiling.device import default_device, device_key

    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    return {
        "machine": str(device_key(default_device())),
        "versions": {"tensorflow": tf.__version__, "keras": keras.__version__, "python": sys.version.split()[0]},
        "commit": commit,
        "seed": 7,
        "rows": {},
    }


if __name__ == "__main__":
    main()
