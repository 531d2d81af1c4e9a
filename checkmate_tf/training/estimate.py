"""Estimates the memory of a model's stock training step, part by part, without running it."""

import re
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import keras
from tabulate import tabulate

from checkmate_tf.arguments import check_flags
from checkmate_tf.budget import format_bytes
from checkmate_tf.errors import BudgetError, make_printable
from checkmate_tf.executors.emission.function import EmittedFunction
from checkmate_tf.executors.step import ResidentBytes
from checkmate_tf.executors.xla.backends import find_backend
from checkmate_tf.executors.xla.hlo.kernels import list_kernels
from checkmate_tf.executors.xla.hlo.memory import compile_step, read_xla_memory
from checkmate_tf.executors.xla.model.graph import make_xla_graph
from checkmate_tf.graph import Graph
from checkmate_tf.keras_private import list_layers
from checkmate_tf.measurement.device_memory import find_free_bytes
from checkmate_tf.measurement.measured_steps import plan_alone
from checkmate_tf.profiling.device import find_default_device
from checkmate_tf.progress import Stage, show_planning
from checkmate_tf.schedule import find_retention
from checkmate_tf.simulator import make_retain_all_schedule, simulate_stock
from checkmate_tf.training.traced_model import TracedModel, trace_model

_LAYERS_SHOWN = 5
# The stages of estimating, with a first guess of their seconds.
_STAGES_S = {Stage.TRACE: 3.0, Stage.COMPILE: 10.0}
# TensorFlow appends a number to the name of a scope if other scopes have the same name.
_SCOPE_NUMBER = re.compile(r"_\d+$")


@dataclass(frozen=True)
class LayerActivations:
    """The bytes of a layer's activations that are held at the step's peak.

    Args:
        name: the path of the layer.
        size_bytes: the size of the activations.

    Example:

    >>> LayerActivations("encoder/dense", size_bytes=4096).size_bytes
    4096
    """

    name: str
    size_bytes: int


@dataclass(frozen=True)
class Estimate:
    """The memory that a stock training step needs at its peak, in requested bytes.

    The device's allocator provides chunks that can be larger, mostly by less than 10 %.

    Args:
        batch_size: rows, of one replica if the model trains on several; None if the batch does not show it.
        resident: bytes that are held throughout the step.
        activation_bytes: values of the forward pass that are held at the peak for gradients.
        gradient_bytes: values of the backward pass that are held at the peak, and the optimizer's values made from
            them.
        workspace_bytes: memory that the operation at the peak holds only while it runs. Under XLA, it is the difference
            between the compiled step and the other parts. If the other parts are larger than the compiled step, one
            factor reduces all of them.
        peak_node: the name of the operation at the peak.
        layers: the layers of `activation_bytes`, the largest first.
        device: the device on which the step would run.
        available_bytes: memory that a step may take there: the free memory less a margin of 10 %, plus the memory of
            the model's variables. None if the device does not report it.
        took_s: time of the estimate.

    Example:

    >>> model = keras.Sequential([keras.Input((1000,)), keras.layers.Dense(500), keras.layers.Dense(1)])
    >>> model.compile("adam", "mse", jit_compile=False)
    >>> needed = estimate(model, batch_size=64, progress=False)
    >>> needed.peak_bytes - needed.resident.total == (
    ...     needed.activation_bytes + needed.gradient_bytes + needed.workspace_bytes
    ... )
    True
    """

    name: str
    batch_size: int | None
    resident: ResidentBytes
    activation_bytes: int
    gradient_bytes: int
    workspace_bytes: int
    peak_node: str
    layers: tuple[LayerActivations, ...]
    device: str
    available_bytes: int | None
    took_s: float

    @property
    def peak_bytes(self) -> int:
        """Returns the sum of all parts: the peak of the step."""
        return self.resident.total + self.activation_bytes + self.gradient_bytes + self.workspace_bytes

    def __str__(self) -> str:
        resident = self.resident
        parts = {
            "parameters": resident.parameters,
            "optimizer state": resident.optimizer,
            "other state": resident.other_state,
            "batch": resident.batch,
            "batches prefetched": resident.prefetched,
            "activations": self.activation_bytes,
            "gradients": self.gradient_bytes,
            "workspace": self.workspace_bytes,
        }
        rows = [("peak, stock (estimated)", format_bytes(self.peak_bytes), "100.0%")]
        rows += [(f"  {name}", format_bytes(size), f"{size / self.peak_bytes:.1%}") for name, size in parts.items()]
        if self.available_bytes is not None:
            verdict = "fits" if self.peak_bytes <= self.available_bytes else "does not fit"
            rows.append((f"available on {self.device}", format_bytes(self.available_bytes), verdict))
        title = self.name if self.batch_size is None else f"{self.name}, {self.batch_size} rows"
        lines = [title, tabulate(rows, tablefmt="simple", disable_numparse=True)]
        lines.append(f"the peak is at {self.peak_node}")
        if self.layers:
            lines.append("activations held there, the largest first:")
            lines += [f"  {format_bytes(each.size_bytes):>10}  {each.name}" for each in self.layers[:_LAYERS_SHOWN]]
        return make_printable("\n".join(lines))


@plan_alone()
def estimate(model: keras.Model, *, batch_size: int | None = None, data: Any = None, progress: bool = True) -> Estimate:
    """Estimates the memory of a compiled model's stock training step, part by part, without running or planning it.

    The step is traced, and compiled if XLA compiles the model. Nothing of the size of a step is allocated, so models
    that are too large for the device can be estimated, too. The model trains as before.

    Args:
        model: the compiled model.
        batch_size: rows of the batch. The other sizes come from the model's input shapes.
        data: as in `rematerialize`, if the model leaves sizes open.
        progress: whether to show a progress bar on standard error, if that is a terminal.

    Returns:
        The parts of the peak.

    Raises:
        UnsupportedModelError: if `rematerialize` would refuse the model.
        BatchError: if it would refuse the batch.

    Example:

    >>> model = keras.Sequential([keras.Input((1000,)), keras.layers.Dense(500), keras.layers.Dense(1)])
    >>> model.compile("adam", "mse", jit_compile=False)
    >>> needed = estimate(model, batch_size=64)
    >>> needed.resident.parameters == 4 * (1000 * 500 + 500 + 500 + 1)
    True
    >>> needed.peak_bytes > needed.resident.parameters + needed.resident.optimizer
    True
    """
    began_s = time.perf_counter()
    check_flags(progress=progress)
    with show_planning(shown=progress, stages_s=_STAGES_S) as bar:
        bar.begin_stage(Stage.TRACE)
        traced = trace_model(model, batch_size=batch_size, data=data)
        training_graph = traced.extract()
        graph, compiled_bytes = training_graph.graph, None
        if model.jit_compile:
            bar.begin_stage(Stage.COMPILE)
            module = compile_step(traced.complete(EmittedFunction(traced.function)), traced.spec.flat)
            graph = make_xla_graph(training_graph, list_kernels(module), find_backend(find_default_device())).graph
            compiled_bytes = read_xla_memory(module).peak_bytes + traced.resident.prefetched
    return _describe_peak(traced, graph, compiled_bytes=compiled_bytes, began_s=began_s)


def _describe_peak(traced: TracedModel, graph: Graph, *, compiled_bytes: int | None, began_s: float) -> Estimate:
    """Returns the parts of the stock step's peak, as simulated or as compiled."""
    model, resident = traced.model, traced.resident
    simulation = simulate_stock(graph)
    peak = simulation.peak_position
    intervals = find_retention(graph, make_retain_all_schedule(graph))
    held = [int(value) for value in intervals.value[(intervals.start <= peak) & (peak <= intervals.end)]]
    sizes = {value: graph.values[value].size_bytes for value in held}
    node = graph.nodes[peak]
    taken_over = graph.resident_bytes + sum(sizes.values()) + node.workspace_bytes - simulation.peak_bytes
    if taken_over:
        sizes[node.outputs[0]] -= taken_over  # The output takes over the storage of an input, which counts already.
    step_bytes = sum(sizes.values()) + node.workspace_bytes
    if compiled_bytes is not None:
        step_bytes = compiled_bytes - resident.total
        share = min(1.0, step_bytes / max(sum(sizes.values()), 1))
        sizes = {value: int(share * size) for value, size in sizes.items()}
    layers: Counter[str] = Counter()
    names = {layer.name for layer in list_layers(model)}
    for value, size in sizes.items():
        if size and not graph.nodes[graph.producer[value]].is_backward:
            layers[_find_layer(graph.values[value].name, names)] += size
    device = find_default_device()
    return Estimate(
        name=model.name,
        batch_size=traced.spec.batch_size,
        resident=resident,
        activation_bytes=layers.total(),
        gradient_bytes=sum(sizes.values()) - layers.total(),
        workspace_bytes=step_bytes - sum(sizes.values()),
        peak_node=node.name,
        layers=tuple(LayerActivations(name, size) for name, size in layers.most_common()),
        device=device,
        available_bytes=_find_available_bytes(device, resident),
        took_s=time.perf_counter() - began_s,
    )


def _find_layer(tensor: str, names: set[str]) -> str:
    """Returns the path of the layers that made a tensor; the tensor's own scope if no layer made it.

    The first scope of a tensor is the model's.
    """
    scopes = tensor.split("/")[:-1]
    path = []
    for scope in scopes[1:]:
        name = _SCOPE_NUMBER.sub("", scope)
        path += [name] if name in names else [scope] if scope in names else []
    return "/".join(path or scopes[:1] or [tensor])


def _find_available_bytes(device: str, resident: ResidentBytes) -> int | None:
    try:
        # The variables are on the device already, but the batch is not.
        return resident.state + find_free_bytes(device)
    except BudgetError:
        return None
