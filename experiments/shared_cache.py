"""Plans models in processes side by side that share one profile cache.

    python -m experiments.shared_cache [--processes 8] [--output FILE.csv]

Each process plans a small model of its own size within 90 % of its memory, with measured costs: half of the nodes are
alike in all of them, so that the processes wait for each other's measurements. A row is a process: how long it took,
what it measured, whether its plan keeps within the budget and trains, and which warnings there were. The last lines say
whether the cache is whole.
"""

import argparse
import sqlite3
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from checkmate_tf.profiling.cache import ProfileCache, get_default_cache_path
from experiments.running import RESULTS_FOLDER, Point, append_row, computed_apart, environment_cells

COLUMNS = (
    "processes", "process", "planning_s", "stock_peak_bytes", "budget_bytes", "measured_peak_bytes", "same_losses",
    "warnings", "kept_measurements", "cache", "commit", "machine", "versions",
)  # fmt: skip


def main() -> int:
    """Returns 1 where a plan is wrong or the cache is not whole."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--output", type=Path, default=RESULTS_FOLDER / "shared_cache.csv")
    options = parser.parse_args()
    points = [{"processes": options.processes, "process": number} for number in range(options.processes)]
    around = environment_cells()
    with TemporaryDirectory() as folder, ThreadPoolExecutor(options.processes) as pool:
        variables = {"XDG_CACHE_HOME": folder}
        rows = list(pool.map(lambda point: computed_apart("experiments.shared_cache:plan", point, variables), points))
        cache = {"cache": check_cache(Path(folder, "checkmate_tf", get_default_cache_path().name))}
    for point, row in zip(points, rows, strict=True):
        append_row(options.output, COLUMNS, {**point, **row, **cache, **around}, digits=5)
        print({**point, **row, **cache}, file=sys.stderr)
    good = all(row["same_losses"] and row["measured_peak_bytes"] <= row["budget_bytes"] for row in rows)
    return int(not good or cache["cache"] != "ok")


def check_cache(path: Path) -> str:
    """Says "ok" where the file is whole and alone, else what is wrong."""
    others = [file.name for file in path.parent.iterdir() if file.name not in (path.name, f"{path.name}.lock")]
    if others:
        return f"there are also {others}"
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchone()[0]


def plan(point: Point) -> dict[str, Any]:
    """Plans a model, and trains it beside a stock one."""
    import checkmate_tf

    stock, x, y = build_model(point["process"])
    model, _, _ = build_model(point["process"])
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = checkmate_tf.rematerialize(model, data=(x, y), budget="90%", progress=False, time_limit_s=10)
        planned = time.perf_counter() - began
    losses = [[float(one.train_on_batch(x, y)) for _ in range(3)] for one in (stock, model)]
    with ProfileCache() as cache:
        kept = sum(cache.count_by_device().values())
    return {
        "planning_s": planned,
        "stock_peak_bytes": found.stock_peak_bytes,
        "budget_bytes": found.budget_bytes,
        "measured_peak_bytes": found.measured_peak_bytes,
        "same_losses": all(abs(a - b) <= 1e-5 * abs(a) for a, b in zip(*losses, strict=True)),
        "warnings": "; ".join(
            _without_folder(one.message) for one in caught if issubclass(one.category, RuntimeWarning)
        ),
        "kept_measurements": kept,
    }


def _without_folder(message: object) -> str:
    return str(message).replace(f"{get_default_cache_path().parent}/", "")


def build_model(number: int) -> tuple[Any, Any, Any]:
    """A network of alike layers, and of some that no other number has; the same weights and data every time."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    widths = [256] * 6 + [128 + 16 * number] * 3
    model = keras.Sequential(
        [keras.Input((256,)), *(keras.layers.Dense(w, "relu") for w in widths), keras.layers.Dense(4)]
    )
    model.compile("sgd", "mse", jit_compile=False)
    random = np.random.default_rng(0)
    return model, random.normal(size=(2048, 256)).astype("float32"), random.normal(size=(2048, 4)).astype("float32")


if __name__ == "__main__":
    sys.exit(main())
