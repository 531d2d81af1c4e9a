"""Fine-tuning of language models of a billion parameters, planned for an H100 that is not there.

    python -m experiments.gpu.fine_tuning [--family llama gemma] [--length 4096 8192] [--budget 8GiB 16GiB]

The models have the sizes of Llama 3.2 1B and of Gemma 3 1B, random weights in bfloat16 and LoRA of rank 8. A batch is
one row of tokens. `rematerialize` plans the step for `Options(device="h100")`, with the loss, feed-forward blocks and
attention in chunks of 512 tokens; JAX and its CUDA plugin must be installed. Nothing runs: the peaks are those of XLA's
buffer assignment for that GPU. Each plan has a process of its own and a row of `results/gpu_fine_tuning.csv`. Rows that
are there are not computed again. TensorFlow needs about 0.7 GB of host memory to lower a block of Gemma 3 at 8,192
tokens, so `gemma_8_blocks` has 8 of the 26 blocks.
"""

import argparse
import time
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

import checkmate_tf
from checkmate_tf.executors.xla.compilers import has_jax
from experiments.running import RESULTS_FOLDER, Point, Row, run_apart

RESULTS = RESULTS_FOLDER / "gpu_fine_tuning.csv"
LENGTHS, BUDGETS = (4_096, 8_192), ("8GiB", "16GiB")
COLUMNS = (
    "family",
    "length",
    "budget",
    "num_parameters",
    "planning_s",
    "stock_peak_bytes",
    "predicted_peak_bytes",
    "measured_peak_bytes",
    "num_recomputed",
    "overhead",
)
_PEAKS = {"stock": "stock_peak_bytes", "predicted": "predicted_peak_bytes", "compiled": "measured_peak_bytes"}
_CHUNK_TOKENS, _LORA_RANK = 512, 8
# Those of the published presets llama3.2_1b and gemma3_1b.
_SIZES: dict[str, dict[str, Any]] = {
    "llama": {
        "vocabulary_size": 128_256,
        "num_layers": 16,
        "num_query_heads": 32,
        "num_key_value_heads": 8,
        "hidden_dim": 2_048,
        "intermediate_dim": 8_192,
        "rope_max_wavelength": 500_000,
        "tie_word_embeddings": True,
    },
    "gemma": {
        "vocabulary_size": 262_144,
        "image_size": None,
        "num_layers": 26,
        "num_query_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "hidden_dim": 1_152,
        "intermediate_dim": 6_912,
        "use_post_ffw_norm": True,
        "use_post_attention_norm": True,
        "use_sliding_window_attention": True,
        "sliding_window_size": 512,
    },
}
_SIZES["gemma_8_blocks"] = _SIZES["gemma"] | {"num_layers": 8}


def compute(point: Point) -> dict[str, Any]:
    """Plans one model for one length and budget."""
    import keras
    import keras_hub
    import numpy as np

    models = keras_hub.models
    makes = {
        "llama": (models.Llama3Backbone, models.Llama3CausalLM),
        "gemma": (models.Gemma3Backbone, models.Gemma3CausalLM),
    }
    make_backbone, make_model = makes[point["family"].removesuffix("_8_blocks")]
    backbone = make_backbone(**_SIZES[point["family"]], dtype="bfloat16")
    backbone.enable_lora(_LORA_RANK)
    model = make_model(backbone=backbone, preprocessor=None)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-4), loss, jit_compile=True)
    tokens = np.random.default_rng(0).integers(1, 1_000, (1, point["length"] + 1))
    row = {"token_ids": tokens[:, :-1], "padding_mask": np.ones((1, point["length"]), bool)}, tokens[:, 1:]
    started_s = time.perf_counter()
    plan = checkmate_tf.rematerialize(
        model,
        budget=point["budget"],
        data=row,
        batch_size=1,
        options=checkmate_tf.Options(device="h100", chunk_loss=_CHUNK_TOKENS, chunk_rows=_CHUNK_TOKENS),
        progress=False,
    )
    return {
        "num_parameters": model.count_params(),
        "planning_s": time.perf_counter() - started_s,
        "stock_peak_bytes": plan.stock_peak_bytes,
        "predicted_peak_bytes": plan.predicted_peak_bytes,
        "measured_peak_bytes": plan.measured_peak_bytes,
        "num_recomputed": len(plan.recomputed),
        "overhead": plan.overhead,
    }


def table(rows: Sequence[Row]) -> str:
    """The table of the page, in markdown."""
    lines = [
        {
            "sizes": row["family"],
            "tokens": row["length"],
            "budget": row["budget"],
            **{f"{peak}, GiB": int(row[column]) / 2**30 if row[column] else "" for peak, column in _PEAKS.items()},
            "recomputed": row["num_recomputed"],
            "overhead": row["overhead"],
            "planning, s": row["planning_s"],
            "error": row["error"][:80],
        }
        for row in rows
    ]
    return tabulate(lines, "keys", tablefmt="github", floatfmt=".4g")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", nargs="+", choices=_SIZES, default=list(_SIZES))
    parser.add_argument("--length", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--budget", nargs="+", default=BUDGETS)
    options = parser.parse_args()
    if not has_jax():
        parser.error('JAX and its CUDA plugin are not installed: pip install "jax[cuda13]"')
    points = [
        {"family": family, "length": length, "budget": budget}
        for family in options.family
        for length in options.length
        for budget in options.budget
    ]
    print(table(run_apart("experiments.gpu.fine_tuning", points, RESULTS, COLUMNS)))


if __name__ == "__main__":
    main()
