"""LoRA on long sequences: peak and step time as it stands, with `keras.remat` around each block, and within budgets.

    python -m experiments.lora_length [--family llama3 ...] [--length 2048 ...] [--way stock remat 50% ...] [--predict]

Each training of KerasHub's small Llama 3 or Gemma 3 (four blocks of width 128, one row of tokens) has a process of its
own and a row of `results/lora_length.csv`. `keras.RematScope` is tried too; what TensorFlow says of it is the row's
error. `keras.remat` runs where its keyword arguments are bound beforehand. "chunks" computes loss, feed-forward blocks
and attention in chunks of 256 tokens, within 512 MiB. With `--predict` nothing runs: the rows have predicted peaks of
steps that take more memory than a small machine has.
"""

import argparse
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from experiments.running import RESULTS_FOLDER, Point, run_apart

RESULTS = RESULTS_FOLDER / "lora_length.csv"
FAMILIES, LENGTHS = ("llama3", "gemma3"), (2_048,)
# Those that are not planned; then "chunks", and budgets.
BY_HAND = ("stock", "scope", "remat")
WAYS = (*BY_HAND, "50%", "230MiB")
COLUMNS = (
    "family",
    "way",
    "length",
    "planning_s",
    "planned_stock_peak_bytes",
    "predicted_peak_bytes",
    "measured_peak_bytes",
    "predicted_overhead",
    "highest_step_peak_bytes",
    "last_step_peak_bytes",
    "step_cpu_s",
    "first_loss",
)
_NUM_BLOCKS, _NUM_STEPS, _WARM_UP_STEPS = 4, 6, 2
_CHUNKS_BUDGET, _CHUNK_TOKENS = "512MiB", 256


def points(families: Iterable[str], lengths: Iterable[int], ways: Iterable[str]) -> list[Point]:
    return [
        {"family": family, "way": way, "length": length} for family in families for length in lengths for way in ways
    ]


def compute(point: Point) -> dict[str, Any]:
    """Trains one model a few steps, one row each; where the point says `predict`, only its peak is predicted."""
    import keras
    import numpy as np

    import checkmate_tf
    from experiments.wild import hub
    from experiments.wild.recording import steps_recorded

    keras.utils.set_random_seed(1)
    way, length, result = point["way"], point["length"], {}
    build = partial(hub.build_lora, {"llama3": hub.build_llama3, "gemma3": hub.build_gemma3}[point["family"]])
    if way == "scope":
        with keras.RematScope(mode="full"):
            model = build(_NUM_BLOCKS)
    else:
        model = build(_NUM_BLOCKS)
    if way == "remat":
        for block in model.backbone.transformer_layers:
            block.call = partial(_call_with_remat, block.call)
    x, y, counted = hub.tokens(np.random.default_rng(0), _NUM_STEPS, length)
    row = {name: values[:1] for name, values in x.items()}, y[:1], counted[:1]
    if point["predict"]:
        return {"predicted_peak_bytes": checkmate_tf.estimate(model, data=row, batch_size=1, progress=False).peak_bytes}
    if way not in BY_HAND:
        started_s = time.perf_counter()
        is_chunked = way == "chunks"
        rows = _CHUNK_TOKENS if is_chunked else None
        plan = checkmate_tf.rematerialize(
            model,
            budget=_CHUNKS_BUDGET if is_chunked else way,
            data=row,
            batch_size=1,
            options=checkmate_tf.Options(costs="flops", chunk_loss=rows, chunk_rows=rows),
            measure=not is_chunked,  # The stock step, which would be measured too, may not fit this machine.
            progress=False,
        )
        result |= {
            "planning_s": time.perf_counter() - started_s,
            "planned_stock_peak_bytes": plan.stock_peak_bytes,
            "predicted_peak_bytes": plan.predicted_peak_bytes,
            "measured_peak_bytes": plan.measured_peak_bytes,
            "predicted_overhead": plan.overhead,
        }
    steps = steps_recorded()
    try:
        model.fit(x, y, sample_weight=counted, batch_size=1, shuffle=False, verbose=0, callbacks=[steps])
    except ValueError as error:
        return result | {"error": " ".join(str(error).split())[:300]}
    return result | {
        "highest_step_peak_bytes": max(steps.peaks),
        "last_step_peak_bytes": steps.peaks[-1],
        "step_cpu_s": float(np.median(steps.cpu_s[_WARM_UP_STEPS:])),
        "first_loss": steps.losses[0],
    }


def _call_with_remat(call: Any, hidden: Any, *others: Any, **named: Any) -> Any:
    """What a block gives, computed again in the backward pass; TensorFlow takes no keyword arguments there."""
    import keras

    return keras.remat(partial(call, **named))(hidden, *others)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--length", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--way", nargs="+", default=WAYS, help='"chunks", or a budget as rematerialize takes it')
    parser.add_argument("--predict", action="store_true", help="predict the peaks of stock and remat; nothing runs")
    options = parser.parse_args()
    run_apart(
        "experiments.lora_length",
        points(options.family, options.length, options.way),
        RESULTS,
        COLUMNS,
        settings={"predict": options.predict},
    )


if __name__ == "__main__":
    main()
