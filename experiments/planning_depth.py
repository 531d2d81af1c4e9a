"""Where planning spends its time on transformers of more and more equal blocks, and how much memory the process takes.

    python -m experiments.planning_depth [--blocks 12 24 48 96] [--budget 60%] [--output FILE.csv]

Each model is planned in a process of its own, with no costs of nodes known from before. Seconds of phases are of the
processor, in that process, so that what else runs on the machine counts less; those of the solver, whose workers are
processes, and of planning in all are by the clock. `keras_cpu_s` is what Keras takes without a plan, in a process of
its own, to trace its step and run it once. `load` is how many processes ran or waited when the row was measured.
"""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from experiments.planning_seconds import transformer
from experiments.running import RESULTS_FOLDER, Point, computed_apart, environment, run_rows

BLOCKS = (12, 24, 48, 96)
PHASES = ("trace", "extract", "stock", "profile", "emit", "rewritten", "rest")
COLUMNS = (
    "blocks", "budget", "nodes", "planning_s", "cpu_s", *(f"{phase}_cpu_s" for phase in PHASES), "solve_s",
    "keras_cpu_s", "peak_memory_bytes", "stock_peak_bytes", "budget_bytes", "measured_peak_bytes", "overhead",
    "lower_bound", "load", "commit", "machine",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", nargs="*", type=int, default=list(BLOCKS))
    parser.add_argument("--budget", default="60%", help="of the stock step's peak")
    parser.add_argument("--output", type=Path, default=RESULTS_FOLDER / "planning_depth.csv")
    options = parser.parse_args()
    run_rows(points(options.blocks, options.budget), compute, options.output, COLUMNS)


def points(blocks: Sequence[int] = BLOCKS, budget: str = "60%") -> list[Point]:
    return [{"blocks": number, "budget": budget} for number in blocks]


def compute(point: Point) -> dict[str, Any]:
    with TemporaryDirectory() as cache:
        row = computed_apart("experiments.planning_depth:planned", point, {"XDG_CACHE_HOME": cache})
    row |= computed_apart("experiments.planning_depth:trained", point)
    around = environment()
    row |= {"commit": around["commit"], "machine": around["machine"]}
    print(point, row, file=sys.stderr, flush=True)
    return row


def build(point: Point) -> Any:
    """A compiled model and a batch (x, y); the allocator counts its activations, which have 256 KiB or more.

    The optimizer is one of few operations, so that most of the step is the blocks.
    """
    import keras

    model, batch = transformer(point["blocks"], width=64, words=500)
    model.compile(keras.optimizers.SGD(0.01), model.loss, jit_compile=False)
    return model, batch


def trained(point: Point) -> dict[str, Any]:
    """Trains a stock model for one step."""
    model, batch = build(point)
    began = time.process_time()
    model.train_on_batch(*batch)
    return {"keras_cpu_s": round(time.process_time() - began, 1)}


def planned(point: Point) -> dict[str, Any]:
    """Plans a model, and tells what each phase of it took."""
    import checkmate_tf
    from checkmate_tf.process_memory import find_peak_bytes

    model, batch = build(point)
    began, cpu_began = time.perf_counter(), time.process_time()
    with clocked_phases() as clock:
        plan = checkmate_tf.rematerialize(model, data=batch, budget=point["budget"], progress=False)
    planning_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    solve_s = clock.wall_s["solve"]
    cpu = {**clock.cpu_s, "rest": cpu_s - clock.cpu_s.total()}
    return {
        "nodes": len(plan.graph.nodes),
        "planning_s": round(planning_s, 1),
        "cpu_s": round(cpu_s, 1),
        **{f"{phase}_cpu_s": round(cpu[phase], 1) for phase in PHASES},
        "solve_s": round(solve_s, 1),
        "peak_memory_bytes": find_peak_bytes(),
        "stock_peak_bytes": plan.stock_peak_bytes,
        "budget_bytes": plan.budget_bytes,
        "measured_peak_bytes": plan.measured_peak_bytes,
        "overhead": round(plan.overhead, 5),
        "lower_bound": round(plan.solution.cost_lower_bound / plan.graph.baseline_cost - 1, 5),
        "load": round(os.getloadavg()[1 if planning_s > 120 else 0], 1),
    }


class Clock:
    """Adds up what functions take, by the clock and of the processor in this process; `cpu_s` and `wall_s` by label."""

    def __init__(self) -> None:
        self.cpu_s: Counter[str] = Counter()
        self.wall_s: Counter[str] = Counter()

    def clocked(self, function: Callable[..., Any], label: Callable[..., str]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            wall, cpu = time.perf_counter(), time.process_time()
            try:
                return function(*arguments, **named)
            finally:
                self.cpu_s[label(*arguments)] += time.process_time() - cpu
                self.wall_s[label(*arguments)] += time.perf_counter() - wall

        return call


@contextmanager
def clocked_phases() -> Iterator[Clock]:
    """Clocks what planning calls, none of which calls another one of them."""
    from checkmate_tf.executors.graph import step as graph_step
    from checkmate_tf.planning import search
    from checkmate_tf.training import traced_model

    clock = Clock()
    phases: list[tuple[Any, str, Callable[..., str]]] = [
        (traced_model, "trace_on_replica", lambda *_: "trace"),
        (graph_step, "extract", lambda *_: "extract"),
        (graph_step, "cost_training_graph", lambda *_: "profile"),
        (search, "solve", lambda *_: "solve"),
        (graph_step, "emit", lambda *_: "emit"),
        (graph_step.GraphStep, "measure", lambda step, run, *_: "stock" if run is step.stock else "rewritten"),
    ]
    with ExitStack() as stack:
        for owner, name, label in phases:
            stack.enter_context(patch.object(owner, name, clock.clocked(getattr(owner, name), label)))
        yield clock


if __name__ == "__main__":
    main()
