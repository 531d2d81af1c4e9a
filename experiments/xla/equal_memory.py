"""`rematerialize` against `tf.recompute_grad` around each block, under XLA at equal memory.

    python -m experiments.xla.equal_memory [--model NAME ...]

`keras.remat` is the same function under another name where Keras runs on TensorFlow. The peer's step is compiled, and
what it takes by XLA's buffer assignment is the budget of `rematerialize`. Times are those of `train_on_batch`: stock,
peer and ours take turns, and each ratio is the median of those of all rounds. Rows that are in the results are not
measured again.
"""

import argparse
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import keras

import checkmate_tf
from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.executors.xla.hlo.memory import compile_step, read_xla_memory
from checkmate_tf.measurement.device_memory import reserve_pool
from checkmate_tf.training.batches import BatchSpec
from checkmate_tf.training.step_part import make_whole_part
from experiments.peers.models import Batch, build
from experiments.peers.rows import Way
from experiments.running import RESULTS_FOLDER, Point, run_apart
from experiments.xla.rows import table_of

MODELS = ("resnet", "unet", "densenet", "encoder", "decoder")
RESULTS = RESULTS_FOLDER / "xla_equal_memory.csv"
COLUMNS = (
    "model", "stock_bytes", "peer_bytes", "our_bytes", "peer_over_stock", "our_over_stock", "our_over_peer",
    "overhead", "planning_s",
)  # fmt: skip
table = table_of(COLUMNS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--rounds", type=int, default=25, help="of a step of each model in turn, after the first")
    options = parser.parse_args()
    settings = {"rounds": options.rounds}
    rows = run_apart("experiments.xla.equal_memory", points(options.model), RESULTS, COLUMNS, settings=settings)
    print(table(rows))


def points(models: Sequence[str] = MODELS) -> list[Point]:
    return [{"model": name} for name in models]


def compute(point: Point) -> dict[str, Any]:
    """A row: a peer, and a plan that is given the memory of that peer."""
    reserve_pool()
    peer, batch = build_compiled(point["model"], "tf.recompute_grad")
    stock, _ = build_compiled(point["model"], "stock")
    peer_bytes = measure_bytes(peer, batch)
    row: dict[str, Any] = {"peer_bytes": peer_bytes, "stock_bytes": measure_bytes(stock, batch)}
    ours, _ = build_compiled(point["model"], "stock")
    began = time.perf_counter()
    try:
        plan = checkmate_tf.rematerialize(ours, data=batch, budget=peer_bytes, progress=False)
    except InfeasibleBudgetError as error:
        return row | {"error": str(error)}
    row |= {"planning_s": time.perf_counter() - began, "overhead": plan.overhead}
    row["our_bytes"] = plan.measured_peak_bytes
    return row | compare_times(stock, peer, ours, batch, point["rounds"])


def build_compiled(name: str, way: Way) -> tuple[keras.Model, Batch]:
    """A model that Keras compiles with XLA, and a batch for it."""
    model, batch = build(name, way)
    model.compile(model.optimizer, model.loss, jit_compile=True)
    return model, batch


def measure_bytes(model: keras.Model, batch: Batch) -> int:
    """The peak of a model's `train_step`, compiled, once it has trained on a batch: what a plan tells of its own."""
    model.train_on_batch(*batch)
    spec = BatchSpec.of(batch)
    step = make_whole_part(model).compute
    return read_xla_memory(compile_step(lambda *tensors: step(spec.pack(tensors)), spec.flat)).peak_bytes


def compare_times(
    stock: keras.Model, peer: keras.Model, ours: keras.Model, batch: Batch, rounds: int
) -> dict[str, float]:
    """Steps of the three models in turn, each first as often as the others."""
    models = {"stock": stock, "peer": peer, "our": ours}
    seconds: list[dict[str, float]] = []
    for turn in range(rounds + 1):
        names = [*list(models)[turn % 3 :], *list(models)[: turn % 3]]
        seconds.append({name: time_step(models[name], batch) for name in names})
    pairs = (("peer", "stock"), ("our", "stock"), ("our", "peer"))
    return {f"{one}_over_{other}": median(s[one] / s[other] for s in seconds[1:]) for one, other in pairs}


def time_step(model: keras.Model, batch: Batch) -> float:
    began = time.perf_counter()
    model.train_on_batch(*batch)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
