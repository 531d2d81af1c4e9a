"""Whether each training step keeps to the budget, over many steps and with `evaluate` and `predict` in between.

    python -m experiments.budget_honesty [--model NAME ...] [--budgets 85% ...] [--steps 30] [--output FILE.csv]
    python -m experiments.budget_honesty --model quick.dense quick.images quick.attention --steps 1000

Models are those of `experiments.wild`, as "peers.NAME" those of `experiments.peers`, and as "quick.NAME" some whose
steps take so little time that a thousand of them are soon done. Each model and budget runs in a
process of its own: `fit` trains in rounds, and after each round come `evaluate` and `predict` on the same data. Peaks
are all that the allocator of the CPU held at most within a step of `fit`, less the data that `fit` holds beside the
batches of the budget. The budget "stock" trains the model as it stands, to tell what grows in any case.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.running import RESULTS_FOLDER, Point, Row, made_with, read_rows, run_apart

RESULTS = RESULTS_FOLDER / "budget_honesty.csv"
STOCK = "stock"
BUDGETS = ("85%", "70%", "55%")
_SHORT_STEPS = 30
# What a peak may be above the budget.
TOLERANCE = 0.02
_BATCHES = 10
_LONGEST_ROUND = 100
_SEED = 1
COLUMNS = (
    "model", "budget", "steps", "stock_peak_bytes", "budget_bytes", "planned_peak_bytes", "data_bytes",
    "first_step_bytes", "last_step_bytes", "highest_step_bytes", "highest_step", "after_inference_bytes", "inference",
    "recomputed", "in_use_growth_bytes", "resident_set_growth_bytes", "threads_growth", "handles_growth",
)  # fmt: skip


def points(models: Sequence[str], budgets: Sequence[str], steps: int) -> list[Point]:
    """Each model with each budget."""
    return [{"model": name, "budget": budget, "steps": steps} for name in models for budget in budgets]


def model_names() -> list[str]:
    """All models."""
    from experiments.peers.models import MODELS as PEERS
    from experiments.wild.models import MODELS as WILD

    return [*(f"quick.{name}" for name in _QUICK_BODIES), *WILD, *(f"peers.{name}" for name in PEERS)]


def compute(point: Point) -> dict[str, Any]:
    """Trains a model within a budget for the steps of the point."""
    import keras

    import checkmate_tf
    from checkmate_tf.errors import InfeasibleBudgetError
    from experiments.wild.recording import bytes_in_use, data_bytes, steps_recorded

    entry = _entry_of(point["model"])
    keras.utils.set_random_seed(_SEED)
    model = entry.build()
    row: dict[str, Any] = {}
    if point["budget"] != STOCK:
        try:
            plan = checkmate_tf.rematerialize(
                model,
                budget=point["budget"],
                options=checkmate_tf.Options(costs="flops"),
                time_limit_s=20,
                progress=False,
                **entry.plan_arguments(),
            )
        except InfeasibleBudgetError as error:
            return {"error": f"refused: {error}"[:300]}
        row = {
            "stock_peak_bytes": plan.stock_peak_bytes,
            "budget_bytes": plan.budget_bytes,
            "planned_peak_bytes": plan.measured_peak_bytes,
            "recomputed": len(plan.recomputed),
        }
        del plan
    before_bytes = bytes_in_use()
    arguments = entry.fit_arguments(_BATCHES)
    held_bytes = bytes_in_use() - before_bytes + data_bytes(model, arguments)
    round_steps = min(_LONGEST_ROUND, _BATCHES * max(1, point["steps"] // (3 * _BATCHES)))
    peaks: list[int] = []
    inference: list[str] = []
    after_inference: list[int] = []
    grown: list[dict[str, int]] = []
    while len(peaks) < point["steps"]:
        steps = steps_recorded()
        model.fit(**arguments, epochs=round_steps // _BATCHES, verbose=0, callbacks=[steps])
        if inference:
            after_inference.append(max(steps.peaks[:_BATCHES]) - held_bytes)
        peaks += [peak - held_bytes for peak in steps.peaks]
        inference = _infer(model, arguments)
        grown.append(_process_sizes() | {"in_use": bytes_in_use()})
    highest = max(range(len(peaks)), key=peaks.__getitem__)
    growth = {name: grown[-1][name] - grown[0][name] for name in grown[0]}
    return row | {
        "data_bytes": held_bytes,
        "first_step_bytes": peaks[0],
        "last_step_bytes": peaks[-1],
        "highest_step_bytes": peaks[highest],
        "highest_step": highest + 1,
        "after_inference_bytes": max(after_inference, default=None),
        "inference": " ".join(inference),
        "in_use_growth_bytes": growth["in_use"],
        "resident_set_growth_bytes": growth["resident_set"],
        "threads_growth": growth["threads"],
        "handles_growth": growth["handles"],
    }


def _entry_of(name: str) -> Any:
    from experiments.peers import models as peers
    from experiments.wild.models import MODELS

    group, _, member = name.rpartition(".")
    if not group:
        return MODELS[name]
    if group == "quick":
        return _made_entry(name, lambda: _build_quick(member), _quick_batch(member))
    return _made_entry(name, lambda: peers.build(member, "stock")[0], peers.build(member, "stock")[1])


def _made_entry(name: str, build: Callable[[], Any], batch: Any) -> Any:
    """A model whose batches are all the same one."""
    import numpy as np

    from experiments.wild.entry import WildModel

    batch_size = len(batch[0])

    def arrays(random: np.random.Generator, rows: int) -> tuple[np.ndarray, ...]:
        return tuple(np.concatenate([array] * (rows // batch_size)) for array in batch)

    return WildModel(name, "", build, arrays, batch_size)


def _build_quick(name: str) -> Any:
    import keras
    from keras import layers

    shape = _QUICK_SHAPES[name][1:]
    inputs = keras.Input(shape, dtype="int32" if name == "text" else "float32")
    hidden = _QUICK_BODIES[name](inputs)
    if len(hidden.shape) > 2:
        hidden = layers.Flatten()(layers.Dense(1)(hidden))
    model = keras.Model(inputs, layers.Dense(10)(hidden))
    optimizer = "adam" if name in ("images", "text") else keras.optimizers.SGD(0.01, momentum=0.9)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    return model


def _quick_batch(name: str) -> tuple[Any, Any]:
    import numpy as np

    random, shape = np.random.default_rng(0), _QUICK_SHAPES[name]
    x = random.integers(0, 100, shape) if name == "text" else random.normal(size=shape)
    return x.astype("int32" if name == "text" else "float32"), random.integers(0, 10, shape[0])


def _dense(hidden: Any) -> Any:
    from keras import layers

    for _ in range(16):
        hidden = layers.Dropout(0.1)(layers.Dense(128, activation="tanh")(hidden))
    return hidden


def _images(hidden: Any) -> Any:
    from keras import layers

    hidden = layers.Conv2D(8, 3, padding="same")(hidden)
    for _ in range(5):
        branch = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(hidden)))
        hidden = hidden + branch
    return hidden


def _pyramid(hidden: Any) -> Any:
    from keras import layers

    skipped = []
    for filters in (8, 16, 32):
        hidden = layers.Conv2D(filters, 3, padding="same", activation="relu")(hidden)
        skipped.append(hidden)
        hidden = layers.MaxPooling2D()(hidden)
    for skip in reversed(skipped):
        joined = layers.Concatenate()([layers.UpSampling2D()(hidden), skip])
        hidden = layers.Conv2D(8, 3, padding="same", activation="relu")(joined)
    return hidden


def _attention(hidden: Any) -> Any:
    from keras import layers

    for _ in range(3):
        normal = layers.LayerNormalization()(hidden)
        hidden = hidden + layers.MultiHeadAttention(4, 8, dropout=0.1)(normal, normal)
        hidden = hidden + layers.Dense(32)(layers.Dense(64, activation="gelu")(layers.LayerNormalization()(hidden)))
    return hidden


def _text(hidden: Any) -> Any:
    from keras import layers

    hidden = layers.Embedding(100, 32)(hidden)
    for _ in range(6):
        hidden = layers.LayerNormalization()(layers.Conv1D(32, 3, padding="same", activation="silu")(hidden))
    return hidden


def _mixer(hidden: Any) -> Any:
    from keras import layers

    for _ in range(4):
        across = layers.Permute((2, 1))(layers.LayerNormalization()(hidden))
        hidden = hidden + layers.Permute((2, 1))(layers.Dense(64, activation="gelu")(across))
        hidden = hidden + layers.Dense(32, activation="gelu")(layers.LayerNormalization()(hidden))
    return hidden


# Their batches; tensors are of 256 KiB and more, the least that the allocator counts.
_QUICK_SHAPES = {
    "dense": (512, 128),
    "images": (16, 32, 32, 3),
    "pyramid": (32, 32, 32, 3),
    "attention": (32, 64, 32),
    "text": (32, 64),
    "mixer": (32, 64, 32),
}
_QUICK_BODIES = {
    "dense": _dense,
    "images": _images,
    "pyramid": _pyramid,
    "attention": _attention,
    "text": _text,
    "mixer": _mixer,
}


def _infer(model: Any, arguments: dict[str, Any]) -> list[str]:
    """Calls `evaluate` and `predict`, and gives the names of those that the model has."""
    given = {name: value for name, value in arguments.items() if name != "shuffle"}
    of_inputs = {name: value for name, value in given.items() if name in ("x", "batch_size")}
    done = []
    for name, call in (("evaluate", lambda: model.evaluate(**given)), ("predict", lambda: model.predict(**of_inputs))):
        try:
            call()
        except (NotImplementedError, TypeError, ValueError, AttributeError):  # a model that has only a train_step
            continue
        done.append(name)
    return done


def _process_sizes() -> dict[str, int]:
    """What this process takes of the system, without what awaits Python's collector."""
    import gc

    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "resident_set": pages * os.sysconf("SC_PAGE_SIZE"),
        "threads": len(os.listdir("/proc/self/task")),
        "handles": len(os.listdir("/proc/self/fd")),
    }


def table(rows: Sequence[Row]) -> str:
    """Peaks over the budget and what grew, a line for each model, budget and number of steps."""
    from tabulate import tabulate

    lines = []
    for row in rows:
        line: list[Any] = [row["model"], row["budget"], row["steps"]]
        if row["error"]:
            lines.append([*line, *[None] * 10, "refused" if row["error"].startswith("refused") else row["error"][:60]])
            continue
        budget_bytes = int(row["budget_bytes"] or 0)
        keys = ("first_step_bytes", "last_step_bytes", "highest_step_bytes", "after_inference_bytes")
        line.append(budget_bytes / 2**20 if budget_bytes else None)
        line += [int(row[key]) / budget_bytes if budget_bytes and row[key] else None for key in keys]
        line += [int(row[key]) / 2**20 for key in ("in_use_growth_bytes", "resident_set_growth_bytes")]
        lines.append([*line, row["threads_growth"], row["handles_growth"], row["inference"], ""])
    headers = ["model", "budget", "steps", "budget MiB", "first", "last", "highest", "after inference", "in use +MiB"]
    headers += ["resident +MiB", "threads +", "handles +", "in between", "error"]
    formats = (*[""] * 3, ".1f", *[".3f"] * 4, *[".2f"] * 2, *[""] * 4)
    return tabulate(lines, headers, floatfmt=formats)


def summary(rows: Sequence[Row]) -> str:
    """How many steps ran within how many budgets, and the highest peak over its budget."""
    ran = [row for row in rows if row["budget_bytes"] and not row["error"]]
    refused = sum(row["error"].startswith("refused") for row in rows)
    shares = {int(row["highest_step_bytes"]) / int(row["budget_bytes"]): row for row in ran}
    highest = max(shares)
    above = sum(share > 1 + TOLERANCE for share in shares)
    return (
        f"{sum(int(row['steps']) for row in ran)} steps of {len({row['model'] for row in ran})} models within "
        f"{len(ran)} budgets. Planning refused {refused} further budgets. "
        f"The highest peak is {highest:.1%} of its budget ({shares[highest]['model']}, {shares[highest]['budget']}); "
        f"steps exceed {above} of the budgets by more than {TOLERANCE:.0%}."
    )


def page() -> str:
    """The results that are kept, in markdown."""
    rows = read_rows(RESULTS)
    return _PAGE.format(summary=summary(rows), table=table(rows), made_with=made_with(rows))


_PAGE = """# Whether steps stay within the budget

Written by `python -m experiments.pages budget_honesty.md` from `budget_honesty.csv`, which
`python -m experiments.budget_honesty` measures. {summary}

Each line is one process, which runs `fit` in rounds, with `evaluate` and `predict` after each round if the model has
them. "First", "last", "highest" and "after inference" are peaks of steps of `fit` divided by the budget. A peak is all
memory that the allocator held, less the data that `fit` holds in addition to the batches of the budget. "Highest"
covers all steps, and "after inference" the first ten steps after each `evaluate` and `predict`. The columns with a plus
show how much more the process held after the last round than after the first: in tensors, in the system's memory, in
threads and in open files. The budget "stock" is stock training.
```text
{table}
```

{made_with}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=model_names(), metavar="NAME")
    parser.add_argument("--budgets", nargs="*", default=list(BUDGETS), help="shares of the stock step's peak, or stock")
    parser.add_argument("--steps", type=int, default=_SHORT_STEPS)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    wanted = points(options.model, options.budgets, options.steps)
    print(table(run_apart("experiments.budget_honesty", wanted, options.output, COLUMNS)))


if __name__ == "__main__":
    main()
