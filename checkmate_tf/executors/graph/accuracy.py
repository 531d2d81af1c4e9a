"""Measures the accuracy of predictions: compares the predicted time and memory of schedules with measured steps."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tabulate import tabulate

from checkmate_tf.budget import format_bytes
from checkmate_tf.executors.graph.writer import emit
from checkmate_tf.graph import Graph
from checkmate_tf.measurement.device_memory import reserve_pool
from checkmate_tf.measurement.position_workspace import find_position_workspace
from checkmate_tf.profiling.memory import measure_allocator_peak_bytes, record_peak_bytes
from checkmate_tf.profiling.pool import CPU_POOL_MIN_BYTES, Request, simulate_pool_peak_bytes
from checkmate_tf.schedule import Schedule, find_retention
from checkmate_tf.simulator import simulate, simulate_stock
from checkmate_tf.tracing.extraction import TrainingGraph, list_argument_sizes, list_captured_sizes

STOCK = "stock"


@dataclass(frozen=True)
class StepAccuracy:
    """Predicted and measured time and peaks of one schedule. Peaks exclude resident bytes.

    Args:
        predicted_s: sum over the schedule's nodes; None if costs are not in ns.
        step_times_s: the time of each measured step, which ran one node after the other.
        predicted_peak_bytes, recorded_peak_bytes: requested bytes, as simulated and as recorded by the runtime.
        predicted_pool_bytes, allocator_peak_bytes: bytes of the pool's chunks; None if they are unknown.
    """

    name: str
    num_positions: int
    predicted_s: float | None
    step_times_s: tuple[float, ...]
    predicted_peak_bytes: int
    recorded_peak_bytes: int
    predicted_pool_bytes: int
    allocator_peak_bytes: int | None

    @property
    def measured_s(self) -> float:
        """Returns the median of the measured times, in seconds."""
        return float(np.median(self.step_times_s))


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of several schedules of one graph. Overheads are relative to the first of them.

    `stock_times_s` are the times of the stock step, in which TensorFlow runs nodes in parallel.
    """

    graph: Graph
    stock_times_s: tuple[float, ...]
    steps: tuple[StepAccuracy, ...]

    def predict_overhead(self, step: StepAccuracy) -> float | None:
        """Returns a step's predicted time over the first step's, minus 1; None if costs are not times."""
        base = self.steps[0].predicted_s
        return None if step.predicted_s is None or not base else step.predicted_s / base - 1

    def find_measured_overhead(self, step: StepAccuracy) -> float:
        """Returns the median, over all rounds, of the step's time over the first step's in the same round, minus 1."""
        pairs = zip(step.step_times_s, self.steps[0].step_times_s, strict=True)
        return float(np.median([mine / base for mine, base in pairs])) - 1

    def list_figures(self) -> dict[str, Any]:
        """Returns all measured and predicted figures, for JSON."""
        steps = [
            {
                **asdict(step),
                "measured_s": step.measured_s,
                "predicted_overhead": self.predict_overhead(step),
                "measured_overhead": self.find_measured_overhead(step),
            }
            for step in self.steps
        ]
        return {"stock_times_s": self.stock_times_s, "steps": steps}

    def tabulate_steps(self) -> str:
        """Makes a table of the time, overhead and peak of every step, measured and predicted."""
        measured = ("time", "overhead", "peak", "in chunks")
        headers = ["step", *(column for name in measured for column in (name, "predicted"))]
        rows = [["stock, nodes in parallel", f"{np.median(self.stock_times_s):.3f} s"]]
        for step in self.steps:
            times, overhead = "", self.predict_overhead(step)
            if step.predicted_s is not None and overhead is not None:
                times = f"{step.predicted_s:.3f} s ({step.predicted_s / step.measured_s - 1:+.1%})"
            rows.append(
                [
                    step.name,
                    *(f"{step.measured_s:.3f} s", times),
                    *(f"{self.find_measured_overhead(step):.1%}", "" if overhead is None else f"{overhead:.1%}"),
                    format_bytes(step.recorded_peak_bytes),
                    _format_comparison(step.predicted_peak_bytes, step.recorded_peak_bytes),
                    format_bytes(step.allocator_peak_bytes) if step.allocator_peak_bytes else "unknown",
                    _format_comparison(step.predicted_pool_bytes, step.allocator_peak_bytes),
                ]
            )
        return tabulate(rows, headers=headers, tablefmt="simple", disable_numparse=True)


def measure_accuracy(
    training_graph: TrainingGraph,
    schedules: Mapping[str, Schedule],
    arguments: Sequence[tf.Tensor],
    *,
    device: str = "CPU:0",
    rounds: int = 5,
) -> Accuracy:
    """Runs the steps of all schedules in turn, `rounds` times, each step with its nodes one after the other.

    Runs change the variables that the step assigns.

    Args:
        training_graph: the graph with the costs and workspace to compare.
        schedules: by name; overheads are relative to the first.
        arguments: flat tensors for the step's own arguments.
    """
    graph = training_graph.graph
    reserved_bytes = reserve_pool(simulate_stock(graph).peak_bytes - graph.resident_bytes)
    functions: dict[str, Any] = {STOCK: training_graph.function}
    for name, schedule in schedules.items():
        functions[name] = emit(training_graph, schedule, ordering="chain").function
    # The smallest step runs first, before the pool holds chunks that only larger ones need.
    pool_bytes = {name: _measure_warm_peak_bytes(functions[name], arguments, device) for name in reversed(functions)}
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function(*arguments)
            tf.test.experimental.sync_devices()
            times[name].append(time.perf_counter() - start)
    steps = []
    for name, schedule in schedules.items():
        simulation = simulate(graph, schedule)
        function = functions[name]
        steps.append(
            StepAccuracy(
                name=name,
                num_positions=len(schedule),
                predicted_s=simulation.cost / 1e9 if graph.cost_unit == "ns" else None,
                step_times_s=tuple(times[name]),
                predicted_peak_bytes=predict_peak_bytes(training_graph, schedule),
                recorded_peak_bytes=record_peak_bytes(function, arguments, warm=True),
                predicted_pool_bytes=predict_pool_bytes(
                    training_graph, schedule, device=device, reserved_bytes=reserved_bytes
                ),
                allocator_peak_bytes=pool_bytes[name],
            )
        )
    return Accuracy(graph, tuple(times[STOCK]), tuple(steps))


def predict_peak_bytes(training_graph: TrainingGraph, schedule: Schedule) -> int:
    """Predicts the most requested bytes that a step holds at once with a schedule, without resident bytes."""
    graph = training_graph.graph
    workspace = graph.arrays.workspace_bytes[list(schedule.order)]
    held = simulate(graph, schedule).memory_bytes - workspace - graph.resident_bytes
    return int((held + find_position_workspace(training_graph, schedule)).max())


def predict_pool_bytes(
    training_graph: TrainingGraph, schedule: Schedule, *, device: str = "CPU:0", reserved_bytes: int = 0
) -> int:
    """Predicts the allocator's peak of a step with a schedule, in bytes of the pool's chunks, without resident ones."""
    return simulate_pool_peak_bytes(
        list_requests(training_graph.graph, schedule, find_position_workspace(training_graph, schedule)),
        variables=list_captured_sizes(training_graph.function),
        arguments=list_argument_sizes(training_graph.function),
        reserved_bytes=reserved_bytes,
        min_bytes=CPU_POOL_MIN_BYTES if device.startswith("CPU") else 0,
    )


def _measure_warm_peak_bytes(function: Any, arguments: Sequence[tf.Tensor], device: str) -> int | None:
    """Measures the allocator's peak of the third run, because the first two trace, compile and fill the pool."""
    for _ in range(2):
        function(*arguments)
    return measure_allocator_peak_bytes(lambda: function(*arguments), device=device)


def list_requests(graph: Graph, schedule: Schedule, workspace: Sequence[int] | np.ndarray) -> Iterator[Request]:
    """Lists the requests of a schedule's nodes to the pool, including workspace. Copies of values own their memory.

    Workspace comes first, because it is mostly a transposed input, or an input of a node's last operation.
    """
    intervals = find_retention(graph, schedule)
    starting: list[list[int]] = [[] for _ in schedule.order]
    ending: list[list[int]] = [[] for _ in schedule.order]
    for copy, (start, end) in enumerate(zip(intervals.start, intervals.end, strict=True)):
        starting[start].append(copy)
        ending[end].append(copy)
    outputs = set(graph.outputs)
    last = len(schedule) - 1
    buffer: dict[int, int] = {}
    for position, number in enumerate(schedule.order):
        node = graph.nodes[number]
        dying = [copy for copy in ending[position] if not (position == last and int(intervals.value[copy]) in outputs)]
        taken = (
            _find_taken_over(graph, node.outputs[0], dying, starting[position], intervals.value)
            if node.inplace
            else None
        )
        yield Request("workspace", int(workspace[position]))
        for copy in starting[position]:
            if taken is not None and intervals.value[copy] == node.outputs[0]:
                buffer[copy] = buffer[taken]
                continue
            buffer[copy] = copy
            yield Request(copy, graph.values[intervals.value[copy]].size_bytes)
        yield Request("workspace", None)
        for copy in dying:
            if copy != taken:
                yield Request(buffer[copy], None)


def _find_taken_over(graph: Graph, output: int, dying: list[int], starting: list[int], value: np.ndarray) -> int | None:
    """Returns the dying copy of an input whose storage the output takes over; None if there is none."""
    size = graph.values[output].size_bytes
    fitting = [copy for copy in dying if copy not in starting and graph.values[value[copy]].size_bytes == size]
    return fitting[0] if fitting else None


def _format_comparison(predicted_bytes: int, measured_bytes: int | None) -> str:
    share = f" ({predicted_bytes / measured_bytes - 1:+.1%})" if measured_bytes else ""
    return format_bytes(predicted_bytes) + share
