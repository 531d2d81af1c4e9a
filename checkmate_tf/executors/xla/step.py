"""Implements `Step` for XLA, which compiles the step. Its peak is known without a run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from checkmate_tf.errors import UnsupportedModelError
from checkmate_tf.executors.emission.function import EmittedFunction, describe_arguments
from checkmate_tf.executors.emission.ordering import Ordering
from checkmate_tf.executors.step import Chunks, HostMemory, OffloadFolder, ResidentBytes
from checkmate_tf.executors.xla.backend import Backend
from checkmate_tf.executors.xla.compilers import LOCAL, Compiler
from checkmate_tf.executors.xla.costs import time_nodes
from checkmate_tf.executors.xla.hlo.kernels import Kernel, list_kernels
from checkmate_tf.executors.xla.hlo.memory import read_xla_memory
from checkmate_tf.executors.xla.host_copies import add_transfer_costs
from checkmate_tf.executors.xla.model.graph import XlaGraph, choose_lowerings, make_xla_graph
from checkmate_tf.executors.xla.writer import arrange_for_xla, emit_for_xla
from checkmate_tf.graph import Graph
from checkmate_tf.measurement.device_memory import reserve_pool
from checkmate_tf.measurement.step_run import StepRun
from checkmate_tf.origins import Origins, ValueType
from checkmate_tf.profiling.costs import CostModel, MeasuredCosts, cost_training_graph
from checkmate_tf.profiling.devices import DeviceFigures
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import simulate_stock
from checkmate_tf.tf_private import XLA_RULES_RELEASE, HloProto
from checkmate_tf.tracing.extraction import TrainingGraph, extract
from checkmate_tf.tracing.origins import find_origins
from checkmate_tf.user_warnings import warn

_BYTES_PER_GBYTE = 10**9


@dataclass(frozen=True)
class XlaStep:
    """A `Step` of XLA: a traced function within a step that is compiled as a whole.

    The graph comes from the kernels of the stock step. The step's arguments and results are resident, and so are
    prefetched batches. Peaks are those of the buffer assignment, not of a run, with prefetched batches; the allocator's
    chunks may be larger.

    Args:
        whole_step: makes the step that is compiled from a function that replaces the traced one.
        specs: of the step's arguments.
        stock_peak_bytes: the peak of the stock step, as compiled, or as extrapolated from another size.
        is_compiled: the stock step was compiled at this size.
        compiler: for the device for which the step is planned.
        host_bytes_per_s: the rate of copies to host memory and back; None if all values stay in the device's memory.
        chunks: the parts that the training graph computes in chunks of rows. The kernels are those of the chunked step.
    """

    training_graph: TrainingGraph
    stock: EmittedFunction
    whole_step: Callable[[EmittedFunction], Callable[..., Any]]
    specs: tuple[tf.TensorSpec, ...]
    resident: ResidentBytes
    stock_peak_bytes: int
    is_compiled: bool
    stock_kernels: tuple[Kernel, ...]
    xla_graph: XlaGraph
    compiler: Compiler = LOCAL
    host_bytes_per_s: float | None = None
    orderings: tuple[Ordering, ...] = ("chain",)
    uses_xla: bool = True
    chunks: tuple[Chunks, ...] = ()
    exceeds_as_stock: bool = False  # A rewritten step is written for XLA, so it keeps to its prediction.

    @staticmethod
    def of(
        training_graph: TrainingGraph,
        whole_step: Callable[[EmittedFunction], Callable[..., Any]],
        specs: Sequence[tf.TensorSpec],
        *,
        resident: ResidentBytes,
        compiler: Compiler = LOCAL,
    ) -> "XlaStep":
        """Compiles the stock step. Warns if the rules were written for the XLA of another TensorFlow.

        Raises UnsupportedModelError if XLA does not compile it.
        """
        try:
            module = compiler.compile_step(whole_step(EmittedFunction(training_graph.function)), specs)
        except (ValueError, tf.errors.OpError) as error:
            reason = str(error).partition("\n")[0]
            remedy = "Compile the model with jit_compile=False" if compiler.device is None else "Leave device out"
            raise UnsupportedModelError(
                f"XLA does not compile the step of {training_graph.graph.name!r}: {reason} {remedy}"
            ) from error
        if compiler.device is None:
            _warn_of_other_xla()
            # The pool splits a chunk of twice the size, so that buffers take no more than they need.
            reserve_pool(2 * read_xla_memory(module).peak_bytes)
        step = XlaStep.of_module(module, compiler.backend, training_graph, whole_step, specs, resident=resident)
        return replace(step, compiler=compiler)

    @staticmethod
    def of_module(
        module: HloProto,
        backend: Backend,
        training_graph: TrainingGraph,
        whole_step: Callable[[EmittedFunction], Callable[..., Any]],
        specs: Sequence[tf.TensorSpec],
        *,
        resident: ResidentBytes,
    ) -> "XlaStep":
        """Makes the step from the compiled module of its stock step, for this or another device."""
        memory, kernels = read_xla_memory(module), list_kernels(module)
        given_bytes = memory.argument_bytes + memory.output_bytes + resident.prefetched
        graph = choose_lowerings(make_xla_graph(training_graph, kernels, backend, given_bytes))
        return XlaStep(
            training_graph=training_graph,
            stock=EmittedFunction(training_graph.function),
            whole_step=whole_step,
            specs=tuple(specs),
            resident=resident,
            stock_peak_bytes=memory.peak_bytes + resident.prefetched,
            is_compiled=True,
            stock_kernels=kernels,
            xla_graph=graph,
        )

    @property
    def graph(self) -> Graph:
        return self.xla_graph.graph

    @property
    def device(self) -> DeviceFigures | None:
        return self.compiler.device

    @property
    def origins(self) -> Origins:
        found, graph = find_origins(self.training_graph), self.xla_graph
        types = (ValueType() if value is None else found.values[value] for value in graph.values)
        return Origins(tuple(found.nodes[node] for node in graph.nodes), tuple(types))

    @property
    def signature(self) -> str:
        return describe_arguments(self.training_graph.function)

    def replace_function(self, function: tf.types.experimental.ConcreteFunction, chunks: Chunks) -> "XlaStep":
        traced = self.training_graph.traced or self.training_graph.function
        graph = extract(function, name=self.graph.name, resident_bytes=self.resident.total)
        step = XlaStep.of(
            replace(graph, traced=traced), self.whole_step, self.specs, resident=self.resident, compiler=self.compiler
        )
        chunked = (*self.chunks, chunks)
        return replace(
            step,
            stock=self.stock,
            stock_peak_bytes=self.stock_peak_bytes,
            host_bytes_per_s=self.host_bytes_per_s,
            chunks=chunked,
        )

    def offload_to(self, place: OffloadFolder | HostMemory) -> "XlaStep":
        if isinstance(place, OffloadFolder):
            raise UnsupportedModelError(
                f"the step of {self.graph.name!r} is compiled by XLA, which copies nothing to files: compile the model "
                "with jit_compile=False, or leave offload out"
            )
        if self.device is None:
            raise UnsupportedModelError(
                f"the step of {self.graph.name!r} is compiled by XLA, and TensorFlow allocates buffers on the device "
                "even if XLA places them in host memory: compile the model with jit_compile=False, or leave offload out"
            )
        rate = place.bytes_per_s or _BYTES_PER_GBYTE * self.device.host_gbytes_per_s
        return replace(self, host_bytes_per_s=rate)

    def add_costs(self, costs: CostModel, *, on_node: Callable[[int, int], None] | None = None) -> "XlaStep":
        """Returns the step with costs. Measured costs are those of each node's module, with the nodes that it fuses."""
        measured = costs if isinstance(costs, MeasuredCosts) else None
        # Nodes that cannot be compiled alone have the costs of the roofline.
        estimated = measured.make_roofline(compiled=True) if measured else costs
        costed = cost_training_graph(self.training_graph, estimated)
        graph = choose_lowerings(make_xla_graph(costed, self.stock_kernels, self.xla_graph.backend))
        graph = _set_resident(graph, self.graph.resident_bytes)
        if measured:
            graph = time_nodes(graph, measured, on_node=on_node)
        if self.host_bytes_per_s is not None:
            graph = add_transfer_costs(graph, self.host_bytes_per_s)
        return replace(self, training_graph=costed, xla_graph=graph)

    def resize(
        self,
        training_graph: TrainingGraph,
        whole_step: Callable[[EmittedFunction], Callable[..., Any]],
        specs: Sequence[tf.TensorSpec],
        *,
        resident: ResidentBytes,
    ) -> "XlaStep":
        """Returns the step at another size, such as another batch size, without compiling it.

        This assumes that XLA forms the same kernels. The stock step's temporary memory grows with the graph's.
        `training_graph` must have the same nodes and values as this step's.
        """
        batches_bytes = resident.batch + resident.prefetched
        resident_bytes = self.graph.resident_bytes + batches_bytes - self.resident.batch - self.resident.prefetched
        xla_graph = _set_resident(self.xla_graph.resize(training_graph), resident_bytes)
        growth = _count_temporary(xla_graph.graph) / max(_count_temporary(self.graph), 1)
        temporary_bytes = self.stock_peak_bytes - self.graph.resident_bytes
        return replace(
            self,
            training_graph=training_graph,
            stock=EmittedFunction(training_graph.function),
            whole_step=whole_step,
            specs=tuple(specs),
            resident=resident,
            stock_peak_bytes=resident_bytes + int(growth * temporary_bytes),
            is_compiled=False,
            xla_graph=xla_graph,
        )

    @property
    def movable_bytes(self) -> int:
        return 0

    @property
    def state_cost(self) -> int:
        return 0

    def move_state(self, size_bytes: int) -> "XlaStep":
        assert not size_bytes
        return self

    def arrange(self, schedule: Schedule) -> Schedule:
        return arrange_for_xla(self.xla_graph, schedule)

    def emit(self, schedule: Schedule, ordering: Ordering) -> EmittedFunction:
        return emit_for_xla(self.xla_graph, schedule)

    def measure(self, function: EmittedFunction, predicted_bytes: int, budget_bytes: int | None = None) -> StepRun:
        if function is self.stock and self.is_compiled:
            return StepRun(self.stock_peak_bytes, is_compiled=True)
        module = self.compiler.compile_step(self.whole_step(function), self.specs)
        return StepRun(read_xla_memory(module).peak_bytes + self.resident.prefetched, is_compiled=True)

    def time_in_turn(self, first: EmittedFunction, second: EmittedFunction) -> None:
        return None

    def find_auto_budget(self) -> int:
        state_bytes = self.resident.state if self.device is None else 0  # This device's free bytes exclude the state.
        return state_bytes + self.compiler.find_free_bytes()


def _set_resident(graph: XlaGraph, resident_bytes: int) -> XlaGraph:
    return replace(graph, graph=replace(graph.graph, resident_bytes=resident_bytes))


def _count_temporary(graph: Graph) -> int:
    """Returns the peak of a step that computes each node once, without resident bytes."""
    return simulate_stock(graph).peak_bytes - graph.resident_bytes


def _warn_of_other_xla() -> None:
    if not tf.__version__.startswith(f"{XLA_RULES_RELEASE}."):
        warn(
            f"TensorFlow {tf.__version__} has another XLA than TensorFlow {XLA_RULES_RELEASE}, for which compiled "
            "steps are predicted: a budget that fits there may be refused here. pip install "
            f"'tensorflow=={XLA_RULES_RELEASE}.*', or compile the model with jit_compile=False"
        )
