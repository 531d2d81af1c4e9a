"""Trains a small GPT-2 on real text for a thousand steps, with its loss at once and in chunks, from several seeds.

    python -m experiments.chunked_training [--steps 1000]

The text is Python's own documentation, which `pydoc_data` carries, in tokens that byte pairs of it make; its last tenth
is held out. Each training of KerasHub's small GPT-2 (three blocks of width 128) has a process of its own and a row of
`results/chunked_training.csv`. Stock and chunked trainings of a seed begin with the same weights and take the same
batches; other seeds say how far trainings differ by themselves.
"""

import argparse
from typing import Any

from experiments.running import RESULTS_FOLDER, Point, run_apart

RESULTS = RESULTS_FOLDER / "chunked_training.csv"
SEEDS, TRAININGS = (1, 2, 3), ("stock", "chunked")
COLUMNS = (
    "training", "seed", "steps", "num_words", "num_chunks", "stock_peak_bytes", "peak_bytes", "step_s",
    "held_out_loss", "losses",
)  # fmt: skip
_NUM_WORDS, _LENGTH, _ROWS, _CHUNK_ROWS = 2_048, 128, 4, 128
_NUM_HELD_OUT = 64


def points(steps: int) -> list[Point]:
    return [{"training": training, "seed": seed, "steps": steps} for seed in SEEDS for training in TRAININGS]


def compute(point: Point) -> dict[str, Any]:
    """Trains once; every loss is kept."""
    import keras
    import numpy as np

    import checkmate_tf
    from experiments.training_steps import BatchLosses
    from experiments.wild import hub

    keras.utils.set_random_seed(point["seed"])
    sizes = {"num_heads": 4, "max_sequence_length": _LENGTH, "vocabulary_size": _NUM_WORDS}
    model = hub.build_causal("GPT2", **sizes)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, jit_compile=False)
    words = _split_text()
    num_trained = 9 * len(words) // 10
    random = np.random.default_rng(point["seed"])
    x, y = _take_rows(words[:num_trained], random.integers(0, num_trained - _LENGTH - 1, point["steps"] * _ROWS))
    held_out = _take_rows(words[num_trained:], np.linspace(0, len(words) - num_trained - _LENGTH - 1, _NUM_HELD_OUT))
    row: dict[str, Any] = {"num_words": _NUM_WORDS}
    if point["training"] == "chunked":
        plan = checkmate_tf.rematerialize(
            model,
            data=(x, y),
            batch_size=_ROWS,
            budget="100%",
            options=checkmate_tf.Options(costs="flops", chunk_loss=_CHUNK_ROWS),
            progress=False,
        )
        (chunks,) = plan.chunks
        row |= {"num_chunks": chunks.num_chunks, "stock_peak_bytes": plan.stock_peak_bytes}
    report, losses = checkmate_tf.MemoryReport(), BatchLosses()
    keras.utils.set_random_seed(point["seed"])
    history = model.fit(x, y, batch_size=_ROWS, shuffle=False, verbose=0, callbacks=[report, losses])
    evaluated = model.evaluate(*held_out, batch_size=_ROWS, verbose=0, return_dict=True)
    return row | {
        "peak_bytes": report.peak_bytes,
        "step_s": history.history["step_s"][0],
        "held_out_loss": f"{evaluated['loss']:.9g}",
        "losses": " ".join(f"{loss:.6g}" for loss in losses.losses),
    }


def _split_text() -> Any:
    """Splits the text into tokens, [num_tokens]."""
    from pydoc_data.topics import topics

    import numpy as np
    from tokenizers import ByteLevelBPETokenizer

    texts = [topics[name] for name in sorted(topics)]
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=_NUM_WORDS, show_progress=False)
    return np.concatenate([np.array(tokenizer.encode(text).ids, "int32") for text in texts])


def _take_rows(words: Any, starts: Any) -> tuple[Any, Any]:
    """Takes rows of tokens from where they start, and those that follow each."""
    import numpy as np

    table = words[np.asarray(starts, "int64")[:, None] + np.arange(_LENGTH + 1)]
    return {"token_ids": table[:, :-1], "padding_mask": np.ones((len(table), _LENGTH), bool)}, table[:, 1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    run_apart("experiments.chunked_training", points(parser.parse_args().steps), RESULTS, COLUMNS)


if __name__ == "__main__":
    main()
