"""Models that train below the least budget of recomputation alone, with values in files.

    python -m experiments.offloading [--model convolutions ...] [--folder DIRECTORY]

Each model trains in three ways: as it stands ("stock"), by a plan for the least budget that recomputation alone is
found to keep to ("recompute"), and by a plan for a budget below that with values in files ("offload"). "adam" has an
optimizer with state, most of which must then be in the file. Each training is a fresh process, on one batch, which
reports the highest peak of TensorFlow's allocator, the largest resident set of the process (VmHWM), the weights at the
end, and the median time of a step. The three ways take turns, three times each. "quick" trains for a thousand steps.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from experiments import offload_h100
from experiments.running import RESULTS_FOLDER, ROOT, Point, Row, computed_apart, made_with, read_rows, run_apart

RESULTS = RESULTS_FOLDER / "offloading.csv"
MODES = ("stock", "recompute", "offload")
COLUMNS = (
    "model", "mode", "steps", "budget_bytes", "predicted_peak_bytes", "peak_bytes", "resident_set_bytes", "recomputed",
    "offloaded", "offloaded_bytes", "offloaded_state_bytes", "hidden_share", "predicted_overhead", "overhead", "step_s",
    "difference", "in_use_growth_bytes", "resident_set_growth_bytes", "handles_growth",
)  # fmt: skip
_TRIED = 0.9  # of the last budget, without the resident bytes
_BELOW = 0.85  # of the least budget of recomputation alone, without the resident bytes
_MOVED = 0.7  # of the optimizer's state, for models with state
_SEED = 1
_STEPS = {"quick": 1000}
_FEW_STEPS = 12
_ROUNDS = 3
_TIME_LIMIT_S = 10.0
_WARM = 100  # of a thousand steps, before growth is counted


def points(models: Sequence[str]) -> list[Point]:
    return [{"model": name} for name in models]


def compute(point: Point) -> list[dict[str, Any]]:
    """Plans a model in each way, and has fresh processes train it in turns; returns a row for each way."""
    import checkmate_tf
    from checkmate_tf.errors import InfeasibleBudgetError

    name, folder = point["model"], point["folder"]
    plan = partial(checkmate_tf.rematerialize, data=make_batch(name), progress=False, time_limit_s=_TIME_LIMIT_S)
    recompute = find_least(name, plan)
    resident = recompute.resident
    below_bytes = _lower(recompute, _BELOW) - int(_MOVED * resident.optimizer)
    plans, refused = {"recompute": recompute}, []
    try:
        options = checkmate_tf.Options(offload=f"file:{folder}")
        plans["offload"] = plan(build(name), budget=below_bytes, options=options)
    except InfeasibleBudgetError as error:
        refused.append({"mode": "offload", "budget_bytes": below_bytes, "error": str(error)})
    with tempfile.TemporaryDirectory() as plan_folder:
        ways = {"stock": {**point, "plan": ""}}
        for mode, one in plans.items():
            ways[mode] = {**point, "plan": os.path.join(plan_folder, f"{mode}.json")}
            one.save(ways[mode]["plan"])
        trained = train_in_turns(ways)
    rows = {"stock": {}, **{mode: describe(one) for mode, one in plans.items()}}
    return [{"mode": mode, **row, **trained[mode]} for mode, row in rows.items()] + refused


def find_least(name: str, plan: Callable[..., Any]) -> Any:
    """Returns the plan for the least budget that recomputation alone is found to keep to.

    A tenth less than the last budget is tried until it is refused, beginning with the budget that an error names.
    """
    from checkmate_tf.errors import InfeasibleBudgetError

    found, budget_bytes = None, 1
    while True:
        try:
            found = plan(build(name), budget=budget_bytes)
        except InfeasibleBudgetError as error:
            if found is not None:
                return found
            if error.least_budget_bytes is None:
                raise
            budget_bytes = max(error.least_budget_bytes, int(budget_bytes / _TRIED))
        else:
            budget_bytes = _lower(found, _TRIED)


def _lower(plan: Any, share: float) -> int:
    """Returns a plan's budget, lowered to a share of it; resident bytes stay as they are."""
    return plan.resident.total + int(share * (plan.budget_bytes - plan.resident.total))


def describe(plan: Any) -> dict[str, Any]:
    """Returns the columns that a plan fills."""
    return {
        "budget_bytes": plan.budget_bytes,
        "predicted_peak_bytes": plan.predicted_peak_bytes,
        "recomputed": len(plan.recomputed),
        "offloaded": len(plan.offloaded),
        "offloaded_bytes": sum(one.size_bytes for one in plan.offloaded),
        "offloaded_state_bytes": plan.resident.offloaded,
        "hidden_share": plan.hidden_share,
        "predicted_overhead": plan.overhead,
    }


def train_in_turns(ways: dict[str, Point]) -> dict[str, dict[str, Any]]:
    """Trains in each way, several times in turns, each time in a fresh process. Returns the columns of each way."""
    import numpy as np

    found, weights = defaultdict(list), defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "weights.npz")
        for _ in range(_ROUNDS):
            for mode, point in ways.items():
                found[mode].append(computed_apart("experiments.offloading:train", {**point, "weights": path}))
                with np.load(path) as arrays:
                    weights[mode].append(list(arrays.values()))
    return {
        mode: rows[-1]
        | {name: max(row[name] for row in rows) for name in ("peak_bytes", "resident_set_bytes")}
        | {
            "step_s": statistics.median(row["step_s"] for row in rows),
            "overhead": statistics.median(
                row["step_s"] / stock["step_s"] - 1 for row, stock in zip(rows, found["stock"], strict=True)
            ),
            "difference": max(_compare(weights["stock"][0], trained) for trained in weights[mode]),
        }
        for mode, rows in found.items()
    }


def _compare(expected: list[Any], trained: list[Any]) -> float:
    """Returns the largest difference of an element."""
    return max(float(abs(one - other).max()) for one, other in zip(expected, trained, strict=True))


def train(point: Point) -> dict[str, Any]:
    """Trains a model by a plan, or as it stands, and saves its weights."""
    import numpy as np
    import tensorflow as tf

    import checkmate_tf

    model, (x, y) = build(point["model"]), make_batch(point["model"])
    if point["plan"]:
        options = checkmate_tf.Options(offload=f"file:{point['folder']}")
        checkmate_tf.rematerialize(
            model, plan=point["plan"], data=(x, y), measure=False, progress=False, options=options
        )
    peaks, times_s, sizes, num_steps = [], [], [], _STEPS.get(point["model"], _FEW_STEPS)
    for step in range(num_steps):
        tf.config.experimental.reset_memory_stats("CPU:0")
        began = time.perf_counter()
        model.train_on_batch(x, y)
        times_s.append(time.perf_counter() - began)
        peaks.append(int(tf.config.experimental.get_memory_info("CPU:0")["peak"]))
        if step in (_WARM, num_steps - 1):
            sizes.append(read_sizes())
    np.savez(point["weights"], *model.get_weights())
    growth = {f"{name}_growth{unit}": sizes[-1][name] - sizes[0][name] for name, unit in _GROWING.items()}
    return {
        "steps": num_steps,
        "peak_bytes": max(peaks),
        "resident_set_bytes": read_status("VmHWM"),
        "step_s": statistics.median(times_s[1:]),
        **(growth if len(sizes) > 1 else {}),
    }


_GROWING = {"in_use": "_bytes", "resident_set": "_bytes", "handles": ""}


def read_sizes() -> dict[str, int]:
    """Reads what would grow in a process that leaks."""
    import tensorflow as tf

    return {
        "in_use": int(tf.config.experimental.get_memory_info("CPU:0")["current"]),
        "resident_set": read_status("VmRSS"),
        "handles": len(os.listdir("/proc/self/fd")),
    }


def read_status(name: str) -> int:
    """Reads bytes of this process that Linux counts."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) << 10


_SHAPES = {
    "convolutions": (16, 128, 128, 3),
    "transformer": (32, 256, 128),
    "unet": (4, 128, 128, 3),
    "quick": (1, 64, 64, 3),
    "adam": (32, 16, 256),
}
MODELS = tuple(_SHAPES)


def make_batch(name: str) -> tuple[Any, Any]:
    import numpy as np

    random, shape = np.random.default_rng(_SEED), _SHAPES[name]
    return random.random(shape, dtype=np.float32), random.random((shape[0], 10), dtype=np.float32)


def build(name: str) -> Any:
    import keras
    from keras import layers

    keras.utils.set_random_seed(_SEED)
    inputs = keras.Input(_SHAPES[name][1:])
    add = {"transformer": _add_blocks, "unet": _add_unet, "adam": _add_products}.get(name, _add_convolutions)
    hidden = add(inputs)
    while len(hidden.shape) > 2:
        hidden = keras.ops.mean(hidden, axis=1)
    model = keras.Model(inputs, layers.Dense(10)(hidden))
    optimizer = keras.optimizers.Adam(0.001) if name == "adam" else keras.optimizers.SGD(0.001)
    model.compile(optimizer, "mse", jit_compile=False)
    return model


def _add_convolutions(hidden: Any) -> Any:
    from keras import layers

    hidden = layers.Conv2D(32, 3, padding="same")(hidden)
    for _ in range(6):
        inner = layers.Conv2D(32, 3, padding="same", activation="relu")(hidden)
        hidden = hidden + layers.Conv2D(32, 3, padding="same")(inner)
    return hidden


def _add_products(hidden: Any) -> Any:
    from keras import layers

    for _ in range(6):
        hidden = layers.Dense(2048, activation="relu")(hidden)
    return hidden


def _add_blocks(hidden: Any) -> Any:
    from keras import layers

    for _ in range(4):
        normal = layers.LayerNormalization()(hidden)
        hidden = hidden + layers.MultiHeadAttention(4, 32)(normal, normal)
        wide = layers.Dense(512, activation="relu")(layers.LayerNormalization()(hidden))
        hidden = hidden + layers.Dense(128)(wide)
    return hidden


def _add_unet(hidden: Any) -> Any:
    from keras import layers

    skips = []
    for filters in (32, 48, 64):
        for _ in range(2):
            hidden = layers.Conv2D(filters, 3, padding="same", activation="relu")(hidden)
        skips.append(hidden)
        hidden = layers.MaxPooling2D()(hidden)
    for skip in reversed(skips):
        hidden = layers.Concatenate()([layers.UpSampling2D()(hidden), skip])
        for _ in range(2):
            hidden = layers.Conv2D(skip.shape[-1], 3, padding="same", activation="relu")(hidden)
    return hidden


def table(rows: Sequence[Row]) -> str:
    """The rows of each model, one below the other."""
    lines = [
        "| model | step | budget | allocator's peak | VmHWM | recomputed | offloaded | state in the file | hidden "
        "| time, predicted | time, measured | difference |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    modes = (*MODES, "")  # a model that cannot be planned so has a row of no mode, with the error
    for row in sorted(rows, key=lambda row: (MODELS.index(row["model"]), modes.index(row["mode"]))):
        if row["error"]:
            lines.append(f"| {row['model']} | {row['mode']} | {row['error'].replace('|', '/')} |" + " |" * 9)
            continue
        planned = row["mode"] != "stock"
        cells = [
            row["model"],
            row["mode"],
            _mebibytes(row["budget_bytes"]),
            _mebibytes(row["peak_bytes"]),
            _mebibytes(row["resident_set_bytes"]),
            row["recomputed"],
            f"{row['offloaded']} of {_mebibytes(row['offloaded_bytes'])}" if row["offloaded"] not in ("", "0") else "",
            _mebibytes(row["offloaded_state_bytes"]) if row["offloaded_state_bytes"] not in ("", "0") else "",
            f"{float(row['hidden_share']):.0%}" if row["mode"] == "offload" else "",
            f"{1 + float(row['predicted_overhead']):.2f}" if planned else "1.00",
            f"{1 + float(row['overhead']):.2f}",
            f"{float(row['difference']):.1g}" if row["difference"] else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def page() -> str:
    """The page, from the rows."""
    rows = read_rows(RESULTS)
    grown = [row for row in rows if row["in_use_growth_bytes"]]
    growth = [
        f"| {row['model']} | {row['mode']} | {row['steps']} | {row['in_use_growth_bytes']} | "
        f"{row['resident_set_growth_bytes']} | {row['handles_growth']} |"
        for row in grown
    ]
    return "\n".join(
        [
            "# Values in files",
            "",
            "`python -m experiments.offloading`, kept in `offloading.csv`",
            "",
            "Each training is a new process, on one batch: the stock step, a plan for the least budget that "
            "recomputation alone is found to keep to, and a plan for a lower budget with values in files. The three "
            "take turns, three times each. Peaks are the highest of all steps. Times are medians of steps, divided by "
            "that of the stock step in the same turn; the median of the three turns is shown. VmHWM counts the whole "
            "process, including TensorFlow, and the memory for tracing and rewriting the step. The difference is the "
            "largest one of a trained weight from the first stock training; for the stock step, it is that of two "
            "trainings.",
            "",
            table(rows),
            "",
            "Growth from step 100 to the last, in bytes, and file handles:",
            "",
            "| model | step | steps | allocator | resident set | handles |",
            "|---|---|---|---|---|---|",
            *growth,
            "",
            *offload_h100.section(),
            made_with(rows),
            "",
        ]
    )


def _mebibytes(cell: str) -> str:
    return f"{int(cell) / 2**20:.0f} MiB" if cell else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--folder", default=str(ROOT / "build"), help="directory for values (default: %(default)s)")
    options = parser.parse_args()
    Path(options.folder).mkdir(exist_ok=True)
    settings = {"folder": options.folder}
    run_apart("experiments.offloading", points(options.model), RESULTS, COLUMNS, settings=settings)


if __name__ == "__main__":
    main()
