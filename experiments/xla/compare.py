"""What a user has under XLA without this project, on the models of the table: memory by buffer assignment, and time.

    python -m experiments.xla.compare [--model NAME ...]

`keras.remat` is put around each convolution with its normalization (attention and feed-forward in the transformer),
`tf.recompute_grad` around each block, `keras.RematScope` around the whole model. Memory is that of the whole
`train_step`, times are those of `train_on_batch`, paired with the stock model's. XLA's own rematerialization
(HloRematerialization) is a pass of its compilers for accelerators: XLA:CPU has no flag that turns it on. Rows that are
in the results are not run again.
"""

import argparse
import os
import re
from pathlib import Path
from statistics import median
from typing import Any, get_args

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras

from checkmate_tf.measurement.runs import reserve_pool
from checkmate_tf.training.batches import BatchSpec
from checkmate_tf.training.step_parts import make_whole_part
from checkmate_tf.xla.memory import XlaMemory, compiled, xla_memory
from experiments.peak_table import time_ratio
from experiments.running import RESULTS_FOLDER, read_rows
from experiments.xla.models import BATCH_SIZE, MODELS, Remat, build
from experiments.xla.rows import append_row, table

RESULTS = RESULTS_FOLDER / "xla_peers.csv"
COLUMNS = ("model", "batch_size", "way", "temporary_bytes", "peak_bytes", "time_ratio", "error")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--way", nargs="*", default=list(get_args(Remat)), choices=get_args(Remat))
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE)
    parser.add_argument("--repeats", type=int, default=7, help="paired timings of the stock model and this one")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    reserve_pool()
    for name in options.model:
        compare(name, options)
    print(table(read_rows(options.output), COLUMNS))


def compare(name: str, options: argparse.Namespace) -> None:
    """Adds the rows of a model that are missing."""
    known = {(row["model"], row["way"]) for row in read_rows(options.output)}
    ways = [way for way in options.way if (name, way) not in known]
    if not ways:
        return
    stock, data = build(name, batch_size=options.batch_size)
    stock.train_on_batch(*data)
    for way in ways:
        found = {"model": name, "batch_size": options.batch_size, "way": way}
        append_row(options.output, COLUMNS, found | measured(name, way, stock, options))


def measured(name: str, way: Remat, stock: keras.Model, options: argparse.Namespace) -> dict[str, Any]:
    """A model rematerialized in a way, trained beside the stock one."""
    try:
        model, data = build(name, way, batch_size=options.batch_size)
        model.train_on_batch(*data)
        memory = step_memory(model, data)
    except Exception as error:  # what Keras or TensorFlow refuse is a result too
        plain = " ".join(re.sub(r"\x1b\[\d+m", "", str(error)).split())  # Keras prints its reasons in bold
        return {"error": f"{type(error).__name__}: {plain[:240]}"}
    ratios = [time_ratio(model, stock, data, stock_first=bool(turn % 2)) for turn in range(options.repeats)]
    return {
        "temporary_bytes": memory.temporary_bytes,
        "peak_bytes": memory.peak_bytes,
        "time_ratio": round(median(ratios), 3),
    }


def step_memory(model: keras.Model, data: Any) -> XlaMemory:
    """Of the `train_step` of a model that has trained, compiled for batches like these."""
    spec = BatchSpec.of(data)
    step = make_whole_part(model).compute
    return xla_memory(compiled(lambda *tensors: step(spec.pack(tensors)), spec.flat))


if __name__ == "__main__":
    main()
