"""Which parts of KerasHub's models can be computed in chunks of rows, and why the others cannot.

    python -m experiments.chunked_parts [--model hub_gpt2 ...]

Each model's step is traced in a process of its own; nothing runs. It has a row of `results/chunked_parts.csv` for its
loss, for its feed-forward products and for its attention: how many there are, how many of them are computed in chunks,
and the reason for the first that is not. `results/chunked_parts.md` shows one row a model.
"""

import argparse
from collections.abc import Iterable, Iterator
from typing import Any

from experiments.running import RESULTS_FOLDER, Point, Row, made_with, read_rows, run_apart

RESULTS = RESULTS_FOLDER / "chunked_parts.csv"
PARTS = ("loss", "feed-forward", "attention")
COLUMNS = ("model", "part", "num_found", "num_chunked", "num_rows", "reason")
_SHOWN_LENGTH = 160
_NOTES = (
    "DeBERTa gathers scores by the distance of query and key. TensorFlow computes the gradient of that as one sum by "
    "segments (`UnsortedSegmentSum`) over all entries, queries and distances.",
    "T5's layers share one bias, which is as large as the scores of a layer. Its gradient adds up those of all layers, "
    "so no layer's attention is independent of the others.",
    "`Split` and `Unpack` take queries, keys and values, or scales and shifts, from one product. Other operations read "
    "all rows of the parts, which together are as large as the product. Chunks of it would save nothing.",
    "SegFormer's convolution mixes tokens between the products of a feed-forward block.",
)


def points(names: Iterable[str]) -> list[Point]:
    return [{"model": name} for name in names]


def compute(point: Point) -> list[dict[str, Any]]:
    """Traces the step of one model, and looks for what can be computed in chunks."""
    import keras

    from checkmate_tf.errors import UnsupportedModelError
    from checkmate_tf.rewriting.chunks import find_loss_region, read_step, write_chunks
    from checkmate_tf.rewriting.regions import find_blocks
    from checkmate_tf.training.traced_model import TracedModel, prepare_batch
    from experiments.wild import hub

    keras.utils.set_random_seed(1)
    described = next(one for one in hub.MODELS if one.name == point["model"])
    model, arguments = described.build(), described.plan_arguments(2)
    batch = prepare_batch(model, batch_size=arguments.get("batch_size"), data=arguments["data"], is_run=False)
    function = TracedModel.of(model, batch.spec, with_metrics=True).function
    try:
        region = find_loss_region(function)
        rows = [{"part": "loss", "num_found": 1, "num_chunked": 1, "num_rows": region.rows.num_tokens}]
        function = write_chunks(function, [region], 128).function
    except UnsupportedModelError as error:
        rows = [{"part": "loss", "num_found": 1, "num_chunked": 0, "reason": str(error).partition(": ")[2]}]
    ops, constants = read_step(function)
    of_data = _find_data(ops)
    blocks: dict[str, list[Any]] = {part: [] for part in PARTS[1:]}
    for block in find_blocks(ops, constants):
        num_of_data = sum(source in of_data for source, _ in ops.inputs[block.product])
        if num_of_data:  # No product of weights alone, as of LoRA, or of positions.
            blocks["attention" if num_of_data > 1 else "feed-forward"].append(block)
    for part, found in blocks.items():
        chunked = [block.region.rows.num_tokens for block in found if block.region is not None]
        reasons = (block.reason for block in found if block.region is None)
        numbers = {"num_found": len(found), "num_chunked": len(chunked), "num_rows": max(chunked, default=None)}
        rows.append({"part": part, **numbers, "reason": next(reasons, None)})
    return rows


def _find_data(ops: Any) -> set[int]:
    """The operations that depend on the batch, and not on variables and constants alone."""
    found: set[int] = set()
    for index, op in enumerate(ops.ops):
        is_batch = op.type == "Placeholder" and op.outputs[0].dtype.name != "resource"
        if is_batch or any(source in found for source, _ in ops.inputs[index]):
            found.add(index)
    return found


def page() -> str:
    """The table of all models."""
    rows = read_rows(RESULTS)
    lines = [
        "# Parts of KerasHub's models that are computed in chunks of rows",
        "",
        "Each model is small, with a batch of 8. A cell counts the products whose results are wider than their "
        "inputs, and how many of them `chunk_loss` and `chunk_rows` compute in chunks. `python -m "
        "experiments.chunked_parts` traces each step, and runs nothing.",
        "",
        f"| model | {' | '.join(PARTS)} | why not |",
        f"|{'---|' * (len(PARTS) + 2)}",
        *_list_lines(rows),
        "",
        "Why these stay whole:",
        "",
        *(f"- {note}" for note in _NOTES),
        "",
        made_with(rows),
        "",
    ]
    return "\n".join(lines)


def _list_lines(rows: list[Row]) -> Iterator[str]:
    for model in dict.fromkeys(row["model"] for row in rows):
        of_part = {row["part"]: row for row in rows if row["model"] == model}
        cells = [_describe(of_part[part]) for part in PARTS]
        reasons = [f"{part}: {_shorten(of_part[part]['reason'])}" for part in PARTS if of_part[part]["reason"]]
        yield f"| {model.removeprefix('hub_')} | {' | '.join(cells)} | {'; '.join(reasons)} |"


def _describe(row: Row) -> str:
    if row["num_found"] == "0":
        return "none"
    return f"{row['num_chunked']} of {row['num_found']}"


def _shorten(reason: str) -> str:
    """Names operations by the last parts of their paths."""
    words = [word if word.count("/") < 2 else "/".join(word.split("/")[-2:]) for word in reason.split()]
    text = " ".join(words)
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}..."


def main() -> None:
    from experiments.wild import hub

    names = [one.name for one in hub.MODELS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=names, default=names)
    run_apart("experiments.chunked_parts", points(parser.parse_args().model), RESULTS, COLUMNS)


if __name__ == "__main__":
    main()
