"""Predicted overhead of five models at one budget: free, with convolutions or attention kept, activations recomputed.

    python -m experiments.steered [--model NAME ...] [--budget 60%]

Costs are counts of operations, and nothing runs. Each plan has a process of its own and a row of
`results/steered.csv`.
"""

import argparse
from collections.abc import Iterable
from typing import Any

from experiments.running import RESULTS_FOLDER, Point, run_apart

RESULTS = RESULTS_FOLDER / "steered.csv"
MODELS = ("unet", "gpt2", "llama3", "gemma3", "resnet50")
STEERED = ("free", "keep", "recompute")
COLUMNS = (
    "model",
    "budget",
    "steered",
    "pattern",
    "num_nodes",
    "num_constrained",
    "stock_peak_bytes",
    "budget_bytes",
    "predicted_peak_bytes",
    "overhead",
    "overhead_without",
    "num_recomputed",
)
_ACTIVATIONS = ("Relu", "Erf", "Tanh", "Sigmoid", "Softplus")
_NUM_BLOCKS, _ROWS, _LENGTH = 3, 8, 128
_TIME_LIMIT_S = 10.0


def is_convolution(node: Any) -> bool:
    """Tells whether a node computes a convolution of the forward pass."""
    return not node.is_backward and "Conv2D" in node.op_type


def is_activation(node: Any) -> bool:
    """Tells whether a node computes an activation alone, without a product that it is fused with."""
    is_product = "Conv" in node.op_type or "MatMul" in node.op_type
    return not node.is_backward and not is_product and any(name in node.op_type for name in _ACTIVATIONS)


def points(models: Iterable[str], budget: str) -> list[Point]:
    return [{"model": model, "budget": budget, "steered": steered} for model in models for steered in STEERED]


def build(name: str) -> tuple[Any, Any]:
    """Builds a compiled model, and a batch of its data."""
    import keras
    import numpy as np

    from experiments.peers import models
    from experiments.wild import hub

    random = np.random.default_rng(0)
    if name == "unet":
        return models.build(name, "stock")
    if name == "resnet50":
        model = keras.applications.ResNet50(input_shape=(96, 96, 3), weights=None, classes=10)
        model.compile(keras.optimizers.SGD(0.05), "sparse_categorical_crossentropy", jit_compile=False)
        return model, (random.normal(size=(_ROWS, 96, 96, 3)).astype("float32"), np.arange(_ROWS) % 10)
    if name == "gpt2":
        model = hub.build_causal("GPT2", _NUM_BLOCKS, num_heads=4, max_sequence_length=_LENGTH)
    else:
        model = {"llama3": hub.build_llama3, "gemma3": hub.build_gemma3}[name](_NUM_BLOCKS)
    return model, hub.tokens(random, _ROWS, _LENGTH)


def compute(point: Point) -> dict[str, Any]:
    """Plans one model."""
    import keras

    import checkmate_tf

    keras.utils.set_random_seed(1)
    model, batch = build(point["model"])
    kept = is_convolution if point["model"] in ("resnet50", "unet") else "*attention*"
    patterns = {"free": {}, "keep": {"keep": [kept]}, "recompute": {"recompute": [is_activation]}}[point["steered"]]
    plan = checkmate_tf.rematerialize(
        model,
        data=batch,
        budget=point["budget"],
        time_limit_s=_TIME_LIMIT_S,
        options=checkmate_tf.Options(costs="flops", **patterns),
        measure=False,
        progress=False,
    )
    (cost,) = plan.patterns or (None,)
    return {
        "pattern": "" if cost is None else cost.pattern,
        "num_nodes": len(plan.graph.nodes),
        "num_constrained": 0 if cost is None else cost.num_nodes,
        "stock_peak_bytes": plan.stock_peak_bytes,
        "budget_bytes": plan.budget_bytes,
        "predicted_peak_bytes": plan.predicted_peak_bytes,
        "overhead": round(plan.overhead, 5),
        "overhead_without": "" if cost is None else round(cost.overhead_without, 5),
        "num_recomputed": len(plan.recomputed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--budget", default="60%", help="as rematerialize takes it")
    options = parser.parse_args()
    run_apart("experiments.steered", points(options.model, options.budget), RESULTS, COLUMNS)


if __name__ == "__main__":
    main()
