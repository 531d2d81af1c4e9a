"""LoRA on long sequences: peak and step time as it stands, with `keras.remat` around each block, and within budgets.

    python -m experiments.lora_length [--family llama3 ...] [--budget 50% ...]

Each training of KerasHub's small Llama 3 or Gemma 3 (four blocks of width 128, one row of 2,048 tokens) has a process
of its own and a row of `results/lora_length.csv`. `keras.RematScope` is tried too; what TensorFlow says of it is the
row's error. `keras.remat` runs where its keyword arguments are bound beforehand.
"""

import argparse
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from experiments.running import RESULTS_FOLDER, Point, run_apart

RESULTS = RESULTS_FOLDER / "lora_length.csv"
FAMILIES, WAYS = ("llama3", "gemma3"), ("stock", "scope", "remat")
BUDGETS = ("50%", "230MiB")
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
_NUM_BLOCKS, _LENGTH, _NUM_STEPS, _WARM_UP_STEPS = 4, 2_048, 6, 2


def points(families: Iterable[str], budgets: Iterable[str]) -> list[Point]:
    return [{"family": family, "way": way} for family in families for way in (*WAYS, *budgets)]


def compute(point: Point) -> dict[str, Any]:
    """Trains one model a few steps, one row each."""
    import keras
    import numpy as np

    import checkmate_tf
    from experiments.wild import hub
    from experiments.wild.recording import steps_recorded

    keras.utils.set_random_seed(1)
    way, result = point["way"], {"length": _LENGTH}
    build = partial(hub.build_lora, {"llama3": hub.build_llama3, "gemma3": hub.build_gemma3}[point["family"]])
    if way == "scope":
        with keras.RematScope(mode="full"):
            model = build(_NUM_BLOCKS)
    else:
        model = build(_NUM_BLOCKS)
    if way == "remat":
        for block in model.backbone.transformer_layers:
            block.call = partial(_call_with_remat, block.call)
    x, y, counted = hub.tokens(np.random.default_rng(0), _NUM_STEPS, _LENGTH)
    if way not in WAYS:
        started_s = time.perf_counter()
        row = {name: values[:1] for name, values in x.items()}, y[:1], counted[:1]
        plan = checkmate_tf.rematerialize(
            model, budget=way, data=row, batch_size=1, options=checkmate_tf.Options(costs="flops"), progress=False
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
    parser.add_argument("--budget", nargs="+", default=BUDGETS, help="as rematerialize takes it")
    options = parser.parse_args()
    run_apart("experiments.lora_length", points(options.family, options.budget), RESULTS, COLUMNS)


if __name__ == "__main__":
    main()
