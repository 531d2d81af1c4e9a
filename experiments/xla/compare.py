"""What a user has under XLA without this project, on the models of the table: memory by buffer assignment, and time.

    python -m experiments.xla.compare [--model NAME ...]

`keras.remat` is put around each convolution with its normalization (attention and feed-forward in the transformer),
`tf.recompute_grad` around each block, `keras.RematScope` around the whole model. Memory is that of the whole
`train_step`, times are those of `train_on_batch`, paired with the stock model's. XLA's own rematerialization
(HloRematerialization) is a pass of its compilers for accelerators: XLA:CPU has no flag that turns it on. Rows that are
in the results are not run again.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, get_args

import keras

from checkmate_tf.measurement.runs import reserve_pool
from checkmate_tf.training.batches import BatchSpec
from checkmate_tf.training.step_parts import make_whole_part
from checkmate_tf.xla.memory import XlaMemory, compile_step, read_xla_memory
from experiments.peak_table import time_ratio
from experiments.running import RESULTS_FOLDER, Point, run_apart
from experiments.xla.models import BATCH_SIZE, MODELS, Remat, build
from experiments.xla.rows import table_of

RESULTS = RESULTS_FOLDER / "xla_peers.csv"
WAYS: tuple[Remat, ...] = get_args(Remat)
COLUMNS = ("model", "batch_size", "way", "temporary_bytes", "peak_bytes", "time_ratio")
table = table_of(COLUMNS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--way", nargs="*", default=list(WAYS), choices=WAYS)
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE)
    parser.add_argument("--repeats", type=int, default=7, help="paired timings of the stock model and this one")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    wanted = points(options.model, options.way, options.batch_size)
    settings = {"repeats": options.repeats}
    print(table(run_apart("experiments.xla.compare", wanted, options.output, COLUMNS, settings=settings)))


def points(
    models: Sequence[str] = tuple(MODELS), ways: Sequence[str] = WAYS, batch_size: int = BATCH_SIZE
) -> list[Point]:
    return [{"model": name, "batch_size": batch_size, "way": way} for name in models for way in ways]


def compute(point: Point) -> dict[str, Any]:
    """A model rematerialized in a way, trained beside the stock one."""
    reserve_pool()
    stock, data = build(point["model"], batch_size=point["batch_size"])
    stock.train_on_batch(*data)
    try:
        model, data = build(point["model"], point["way"], batch_size=point["batch_size"])
        model.train_on_batch(*data)
        memory = step_memory(model, data)
    except Exception as error:  # what Keras or TensorFlow refuse is a result too
        plain = " ".join(re.sub(r"\x1b\[\d+m", "", str(error)).split())  # Keras prints its reasons in bold
        return {"error": f"{type(error).__name__}: {plain[:240]}"}
    ratios = [time_ratio(model, stock, data, stock_first=bool(turn % 2)) for turn in range(point["repeats"])]
    return {
        "temporary_bytes": memory.temporary_bytes,
        "peak_bytes": memory.peak_bytes,
        "time_ratio": median(ratios) if ratios else None,
    }


def step_memory(model: keras.Model, data: Any) -> XlaMemory:
    """Of the `train_step` of a model that has trained, compiled for batches like these."""
    spec = BatchSpec.of(data)
    step = make_whole_part(model).compute
    return read_xla_memory(compile_step(lambda *tensors: step(spec.pack(tensors)), spec.flat))


if __name__ == "__main__":
    main()
