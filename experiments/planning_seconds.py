"""How long planning takes, from nothing and from all that is reused, beside the stock model's first step.

    python -m experiments.planning_seconds [--model NAME ...] [--budget 60%] [--pairs 8] [--output FILE.csv]

The models are those of the peak table, ResNet50 and causal transformers of 12 and 24 layers. Each is planned in four
processes of their own: with empty caches; with the costs of nodes in the cache; with the plan in the cache; from a plan
file, with empty caches. A fifth process takes the first step of the stock model. The second also trains: its times are
of `train_on_batch`, in pairs with the stock model, after the first step.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from experiments import peak_table
from experiments.models import resnet50
from experiments.running import RESULTS_FOLDER, Point, computed_apart, environment, run_rows

TRANSFORMERS = {"gpt2_12": 12, "gpt2_24": 24}
MODELS = (*peak_table.MODELS, "resnet50", *TRANSFORMERS)
COLUMNS = (
    "model", "budget", "nothing_s", "costs_s", "cached_s", "file_s", "stock_first_step_s", "same_schedule",
    "stock_peak_bytes", "budget_bytes", "predicted_peak_bytes", "measured_peak_bytes", "budget_used",
    "predicted_overhead", "measured_overhead", "recomputed", "commit", "machine",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--budget", default="60%", help="of the stock step's peak")
    parser.add_argument("--pairs", type=int, default=8, help="timed steps of either model")
    parser.add_argument("--output", type=Path, default=RESULTS_FOLDER / "planning_seconds.csv")
    options = parser.parse_args()
    wanted = points(options.model, options.budget)
    run_rows(wanted, lambda point: compute(point, options.pairs), options.output, COLUMNS)


def points(models: Sequence[str] = MODELS, budget: str = "60%") -> list[Point]:
    return [{"model": name, "budget": budget} for name in models]


def compute(point: Point, pairs: int) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        caches, plans, plan_file = {"XDG_CACHE_HOME": f"{folder}/cache"}, f"{folder}/plans", f"{folder}/plan.json"

        def run(function: str, variables: dict[str, str], **more: Any) -> Any:
            return computed_apart(f"experiments.planning_seconds:{function}", {**point, **more}, variables)

        nothing = run("planned", caches, plans=plans, save=plan_file)
        costs = run("planned", caches, pairs=pairs)
        cached = run("planned", caches, plans=plans)
        file = run("planned", {"XDG_CACHE_HOME": f"{folder}/empty"}, plan=plan_file, compare=plan_file)
        row = {
            **costs,
            "nothing_s": nothing["planning_s"],
            "costs_s": costs["planning_s"],
            "cached_s": cached["planning_s"],
            "file_s": file["planning_s"],
            "stock_first_step_s": run("first_step_of_stock", caches),
            "same_schedule": file["same_schedule"],
        }
    del row["planning_s"]
    around = environment()
    row |= {"commit": around["commit"], "machine": around["machine"]}
    print(point, row, file=sys.stderr)
    return row


def planned(point: Point) -> dict[str, Any]:
    """Plans a model, from the file `plan` where the point names one, and saves the plan to the file `save`.

    Plans are cached in the folder `plans`, by default nowhere. The schedule is compared with the one in the file
    `compare`. The model then trains beside a stock one for as many `pairs` of steps.
    """
    import checkmate_tf
    from checkmate_tf.planning import plan_cache

    if "plans" in point:
        plan_cache.get_default_folder = lambda: Path(point["plans"])
    model, batch = build(point["model"])
    known = {"plan": point["plan"]} if "plan" in point else {"budget": point["budget"]}
    began = time.perf_counter()
    plan = checkmate_tf.rematerialize(model, data=batch, progress=False, **known)
    result = {
        "planning_s": round(time.perf_counter() - began, 2),
        "stock_peak_bytes": plan.stock_peak_bytes,
        "budget_bytes": plan.budget_bytes,
        "predicted_peak_bytes": plan.predicted_peak_bytes,
        "measured_peak_bytes": plan.measured_peak_bytes,
        "budget_used": round(plan.peak_bytes / plan.budget_bytes, 4),
        "predicted_overhead": round(plan.overhead, 4),
        "recomputed": len(plan.recomputed),
    }
    if "save" in point:
        plan.save(point["save"])
    if "compare" in point:
        result["same_schedule"] = checkmate_tf.load_plan(point["compare"]).schedule == plan.schedule
    if pairs := point.get("pairs"):
        stock, _ = build(point["model"])
        seconds(model, batch), seconds(stock, batch)
        ratios = [seconds(model, batch) / seconds(stock, batch) for _ in range(pairs)]
        result["measured_overhead"] = round(median(ratios) - 1, 4)
    return result


def first_step_of_stock(point: Point) -> float:
    return seconds(*build(point["model"]))


def seconds(model: Any, batch: Any) -> float:
    began = time.perf_counter()
    model.train_on_batch(*batch)
    return round(time.perf_counter() - began, 4)


def build(name: str) -> Any:
    """A compiled model and a batch of arrays (x, y)."""
    if name in peak_table.MODELS:
        return peak_table.build(name)
    return transformer(TRANSFORMERS[name]) if name in TRANSFORMERS else _small_resnet50()


def _small_resnet50() -> Any:
    import keras
    import numpy as np

    model = resnet50(128, num_classes=10, activation="softmax")
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "sparse_categorical_crossentropy")
    return model, (np.random.default_rng(0).normal(size=(8, 128, 128, 3)).astype("float32"), np.arange(8) % 10)


def transformer(num_layers: int, length: int = 128, width: int = 192, words: int = 2000) -> Any:
    """Pre-norm blocks of causal attention and feed-forward layers, with logits for each token, as GPT-2 has them."""
    import keras
    import numpy as np
    from keras import layers

    tokens = keras.Input((length,), dtype="int32")
    hidden = layers.Embedding(words, width)(tokens)
    hidden += layers.Embedding(length, width)(keras.ops.arange(length))
    for _ in range(num_layers):
        normal = layers.LayerNormalization()(hidden)
        hidden += layers.Dropout(0.1)(layers.MultiHeadAttention(4, width // 4)(normal, normal, use_causal_mask=True))
        grown = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(hidden))
        hidden += layers.Dropout(0.1)(layers.Dense(width)(grown))
    model = keras.Model(tokens, layers.Dense(words, use_bias=False)(layers.LayerNormalization()(hidden)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-4), loss, jit_compile=False)
    drawn = np.random.default_rng(0).integers(0, words, (8, length + 1)).astype("int32")
    return model, (drawn[:, :-1], drawn[:, 1:])


if __name__ == "__main__":
    main()
