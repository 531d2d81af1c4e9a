"""Which models of KerasHub can compute their loss in chunks of rows, and why the others cannot.

    python -m experiments.chunked_losses [--model hub_gpt2 ...]

Each model's step is traced in a process of its own, and has a row of `results/chunked_losses.csv`: the rows and the
width of its logits, how many operations are computed in chunks, what leaves them, and otherwise the reason.
"""

import argparse
from collections import Counter
from collections.abc import Iterable
from typing import Any

from experiments.running import RESULTS_FOLDER, Point, run_apart

RESULTS = RESULTS_FOLDER / "chunked_losses.csv"
COLUMNS = ("model", "is_chunked", "num_rows", "num_words", "num_operations", "results_by_rows", "sums", "reason")


def points(names: Iterable[str]) -> list[Point]:
    return [{"model": name} for name in names]


def compute(point: Point) -> dict[str, Any]:
    """Traces the step of one model, and looks for what can be computed in chunks."""
    import keras

    from checkmate_tf.errors import UnsupportedModelError
    from checkmate_tf.rewriting.chunks import find_loss_region, write_chunks
    from checkmate_tf.rewriting.rows import SUM
    from checkmate_tf.training.traced_model import TracedModel, prepare_batch
    from experiments.wild import hub

    keras.utils.set_random_seed(1)
    described = next(one for one in hub.MODELS if one.name == point["model"])
    model, arguments = described.build(), described.plan_arguments(2)
    batch = prepare_batch(model, batch_size=arguments.get("batch_size"), data=arguments["data"], is_run=False)
    function = TracedModel.of(model, batch.spec, with_metrics=True).function
    try:
        region = find_loss_region(function)
    except UnsupportedModelError as error:
        return {"is_chunked": False, "reason": " ".join(str(error).split())[:300]}
    write_chunks(function, [region], 128)
    layouts = Counter(region.exits.values())
    return {
        "is_chunked": True,
        "num_rows": region.rows.num_rows,
        "num_words": region.ops.ops[region.product].outputs[0].shape[-1],
        "num_operations": len(region.members),
        "results_by_rows": sum(layout.is_rows for layout in region.exits.values()),
        "sums": layouts[SUM],
    }


def main() -> None:
    from experiments.wild import hub

    names = [one.name for one in hub.MODELS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=names, default=names)
    run_apart("experiments.chunked_losses", points(parser.parse_args().model), RESULTS, COLUMNS)


if __name__ == "__main__":
    main()
