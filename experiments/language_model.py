"""Trains a small GPT-2 of KerasHub on Python's own documentation, stock and within half of its memory.

    python -m experiments.language_model [--steps 200] [--budget 50%] [--output FILE.csv] [--picture FILE.png]

The text is what `pydoc_data` carries, letter by letter. Each training runs in a process of its own, from the same seeds
and on the same batches, through `fit`. Peaks and times are those of `checkmate_tf.MemoryReport`. Writes
a row a training, and a picture of the losses of both, which docs/LANGUAGE_MODELS.md shows.
"""

import argparse
from pathlib import Path
from typing import Any

from experiments.running import RESULTS_FOLDER, ROOT, Point, Row, run_apart

TRAININGS = ("stock", "within the budget")
COLUMNS = (
    "training", "steps", "budget", "budget_bytes", "peak_bytes", "step_s", "planning_s", "num_recomputed",
    "predicted_overhead", "last_loss", "losses",
)  # fmt: skip
_BLOCKS, _WIDTH, _HEADS, _LENGTH, _ROWS = 6, 192, 6, 128, 16
_SEED = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--budget", default="50%")
    parser.add_argument("--output", type=Path, default=RESULTS_FOLDER / "language_model.csv")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "language_model.png")
    options = parser.parse_args()
    points = [{"training": name, "steps": options.steps, "budget": options.budget} for name in TRAININGS]
    rows = run_apart("experiments.language_model", points, options.output, COLUMNS)
    plot(rows).savefig(options.picture, dpi=120)


def compute(point: Point) -> dict[str, Any]:
    """Trains once."""
    import time

    import keras

    import checkmate_tf
    from experiments.training_steps import BatchLosses

    keras.utils.set_random_seed(_SEED)
    model, (x, y) = make_model(), make_data(point["steps"])
    row: dict[str, Any] = {}
    if point["training"] != "stock":
        began = time.perf_counter()
        plan = checkmate_tf.rematerialize(model, data=(x, y), batch_size=_ROWS, budget=point["budget"], progress=False)
        row = {
            "planning_s": time.perf_counter() - began,
            "budget_bytes": plan.budget_bytes,
            "num_recomputed": len(plan.recomputed),
            "predicted_overhead": plan.overhead,
        }
    report, losses = checkmate_tf.MemoryReport(), BatchLosses()
    keras.utils.set_random_seed(_SEED)
    history = model.fit(x, y, batch_size=_ROWS, shuffle=False, verbose=0, callbacks=[report, losses])
    return row | {
        "peak_bytes": report.peak_bytes,
        "step_s": history.history["step_s"][0],
        "last_loss": losses.losses[-1],
        "losses": " ".join(f"{loss:.6g}" for loss in losses.losses),
    }


def make_model() -> Any:
    """A causal language model, as KerasHub builds GPT-2, with random weights."""
    import keras
    import keras_hub

    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=128, num_layers=_BLOCKS, num_heads=_HEADS, hidden_dim=_WIDTH, intermediate_dim=4 * _WIDTH,
        max_sequence_length=_LENGTH,
    )  # fmt: skip
    model = keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, jit_compile=False)
    return model


def make_data(num_steps: int) -> tuple[Any, Any]:
    """Letters of Python's documentation, and the next letter of each."""
    from pydoc_data.topics import topics

    import numpy as np

    letters = np.frombuffer("".join(topics.values()).encode("ascii", "ignore"), dtype=np.uint8).astype(np.int32)
    rows = num_steps * _ROWS
    starts = np.random.default_rng(_SEED).integers(0, len(letters) - _LENGTH - 1, rows)
    table = letters[starts[:, None] + np.arange(_LENGTH + 1)]
    x = {"token_ids": table[:, :-1], "padding_mask": np.ones((rows, _LENGTH), dtype=bool)}
    return x, table[:, 1:]


def plot(rows: list[Row]) -> Any:
    """Draws the losses of both trainings, one over the other."""
    from checkmate_tf.budget import format_bytes
    from checkmate_tf.reports.pictures import new_figure

    figure = new_figure(8, 4.5)
    axes = figure.subplots()
    for row, color, width in zip(rows, ("#98a3ae", "#cf5b16"), (4.0, 1.2), strict=True):
        losses = [float(loss) for loss in row["losses"].split()]
        label = f"{row['training']}: peak {format_bytes(int(row['peak_bytes']))}, {float(row['step_s']):.2f} s a step"
        axes.plot(range(1, len(losses) + 1), losses, color=color, linewidth=width, label=label)
    axes.set(xlabel="step", ylabel="loss")
    axes.grid(color="0.92")
    figure.suptitle("A small GPT-2 on Python's documentation")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


if __name__ == "__main__":
    main()
