"""Implements `Step` for TensorFlow's graph executor."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import tensorflow as tf

from checkmate_tf.budget import format_bytes
from checkmate_tf.errors import EmissionError, ProfileError, UnsupportedModelError
from checkmate_tf.executors.emission.function import EmittedFunction, describe_arguments
from checkmate_tf.executors.emission.ordering import Ordering
from checkmate_tf.executors.graph.host_state import place_state
from checkmate_tf.executors.graph.movable_state import find_movable
from checkmate_tf.executors.graph.moved_state import MovedState
from checkmate_tf.executors.graph.transfer_costs import TransferCosts, add_transfer_costs, measure_transfers
from checkmate_tf.executors.graph.writer import arrange, emit
from checkmate_tf.executors.step import Chunks, HostMemory, OffloadFolder, ResidentBytes
from checkmate_tf.graph import Graph
from checkmate_tf.interrupts import hold_interrupts
from checkmate_tf.measurement.device_memory import find_free_bytes, reserve_pool
from checkmate_tf.measurement.difference import StepDifference, StepEnd, StockReference, nudge
from checkmate_tf.measurement.kept_state import keep_state
from checkmate_tf.measurement.measured_steps import run_steps, time_in_turn
from checkmate_tf.measurement.step_run import StepRun
from checkmate_tf.origins import Origins
from checkmate_tf.profiling.costs import CostModel, cost_training_graph
from checkmate_tf.profiling.device import find_default_device
from checkmate_tf.profiling.devices import DeviceFigures
from checkmate_tf.rewriting.body import copy_function
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import simulate_stock
from checkmate_tf.tf_private import call_flat
from checkmate_tf.tracing.extraction import TrainingGraph, extract
from checkmate_tf.tracing.observed import Observed, list_open_tensors, observe
from checkmate_tf.tracing.ops import OpList
from checkmate_tf.tracing.origins import find_origins
from checkmate_tf.user_warnings import warn


@dataclass(frozen=True)
class GraphStep:
    """A `Step` of the graph executor: a traced function with static shapes.

    Args:
        arguments: flat tensors on which to run it; None if it must not run.
        reference: the results of the stock step when it was measured, for comparison with rewritten steps.
        is_made_up: the arguments are zeros instead of data.
        chunks: the parts that the training graph computes in chunks of rows.
        place: the place to which values may be copied; None if all stay in memory.
        transfer_costs: the costs of these copies.
        state: the variables that are kept there; None if all are in memory.
    """

    training_graph: TrainingGraph
    resident: ResidentBytes
    arguments: tuple[tf.Tensor, ...] | None
    stock: EmittedFunction
    reference: StockReference = field(default_factory=StockReference, repr=False, compare=False)
    orderings: tuple[Ordering, ...] = ("overlap", "chain")
    exceeds_as_stock: bool = True
    uses_xla: bool = False
    device: DeviceFigures | None = None
    is_made_up: bool = False
    chunks: tuple[Chunks, ...] = ()
    place: OffloadFolder | HostMemory | None = None
    transfer_costs: TransferCosts | None = None
    state: MovedState | None = None

    @staticmethod
    def of(
        function: tf.types.experimental.ConcreteFunction,
        *,
        name: str,
        resident: ResidentBytes,
        arguments: Sequence[tf.Tensor] | None,
        like: TrainingGraph | None = None,
        is_made_up: bool = False,
        reserve: bool = True,
    ) -> "GraphStep":
        """Makes the step of a traced function.

        Args:
            like: the training graph of the same step at another size. Both get the same nodes.
            is_made_up: the arguments are zeros, so that a run does not show sizes that depend on data.
            reserve: whether to reserve memory for it in the allocator's pool, which counts as in use for a moment.

        Raises UnsupportedModelError if the function cannot be rewritten, or if its operations differ from `like`.
        """
        given = None if arguments is None else tuple(arguments)

        def observe_sizes(ops: OpList) -> Observed:
            open_tensors = list_open_tensors(ops)
            if given is None or is_made_up:
                _warn_of_open_sizes(open_tensors, name)
                return Observed()
            with keep_state(function.graph.variables if open_tensors else []):
                return observe(function, ops, given)

        training_graph = extract(function, name=name, resident_bytes=resident.total, like=like, observe=observe_sizes)
        stock = EmittedFunction(copy_function(function))
        step = GraphStep(training_graph, resident, given, stock, is_made_up=is_made_up)
        if reserve:
            reserve_pool(step.stock_peak_bytes)
        return step

    @property
    def graph(self) -> Graph:
        return self.training_graph.graph

    def replace_function(self, function: tf.types.experimental.ConcreteFunction, chunks: Chunks) -> "GraphStep":
        assert self.state is None
        step = GraphStep.of(
            function,
            name=self.graph.name,
            resident=self.resident,
            arguments=self.arguments,
            is_made_up=self.is_made_up,
            reserve=False,
        )
        traced = self.training_graph.traced or self.training_graph.function
        chunked_graph = replace(step.training_graph, traced=traced)
        if self.transfer_costs is not None:
            chunked_graph = add_transfer_costs(chunked_graph, self.transfer_costs)
        return replace(
            step,
            training_graph=chunked_graph,
            place=self.place,
            transfer_costs=self.transfer_costs,
            stock=self.stock,
            reference=self.reference,
            exceeds_as_stock=False,
            chunks=(*self.chunks, chunks),
        )

    @property
    def stock_peak_bytes(self) -> int:
        return simulate_stock(self.graph).peak_bytes

    @property
    def origins(self) -> Origins:
        return find_origins(self.training_graph)

    @property
    def signature(self) -> str:
        return describe_arguments(self.training_graph.function)

    def add_costs(self, costs: CostModel, *, on_node: Callable[[int, int], None] | None = None) -> "GraphStep":
        training_graph = (
            self.training_graph if self.state is None else self.state.drop_from_workspace(self.training_graph)
        )
        costed = cost_training_graph(training_graph, costs, on_node=on_node)
        if self.place is not None and costed.graph.cost_unit != "ns":
            raise ProfileError(
                f"to offload, costs must be times, and those of {self.graph.name!r} are in {costed.graph.cost_unit!r}: "
                'use costs="measured" or "roofline"'
            )
        return replace(self, training_graph=costed if self.state is None else self.state.add_to_workspace(costed))

    def offload_to(self, place: OffloadFolder | HostMemory) -> "GraphStep":
        if isinstance(place, HostMemory) and find_default_device().startswith("CPU"):
            raise UnsupportedModelError(
                f"the step of {self.graph.name!r} runs on a CPU, where host and device share one memory: copy values "
                'to a file with offload="file:DIRECTORY", or leave offload out'
            )
        costs = measure_transfers(place)
        costed = add_transfer_costs(self.training_graph, costs)
        stock = replace(self.stock, on_begin=partial(place_state, self.stock.function.graph.variables))
        return replace(self, training_graph=costed, place=place, transfer_costs=costs, stock=stock)

    @property
    def movable_bytes(self) -> int:
        return 0 if self.place is None else sum(o.size_bytes for o in find_movable(self.training_graph, self.place))

    @property
    def state_cost(self) -> int:
        return 0 if self.state is None else self.state.cost_ns

    def move_state(self, size_bytes: int) -> "GraphStep":
        assert self.state is None
        if not size_bytes or self.place is None or self.transfer_costs is None:
            return self
        state = MovedState.of(self.training_graph, self.place, self.transfer_costs, size_bytes)
        resident = state.take_from(self.resident)
        graph = replace(self.graph, resident_bytes=resident.total)
        moved = state.add_to_workspace(replace(self.training_graph, graph=graph))
        return replace(self, training_graph=moved, resident=resident, state=state)

    def arrange(self, schedule: Schedule) -> Schedule:
        return arrange(self.training_graph, schedule)

    def emit(self, schedule: Schedule, ordering: Ordering) -> EmittedFunction:
        return emit(self.training_graph, schedule, ordering=ordering, place=self.place, state=self.state)

    def measure(
        self, function: EmittedFunction, predicted_bytes: int, budget_bytes: int | None = None
    ) -> StepRun | None:
        if self.arguments is None:
            return None
        variables = function.function.graph.variables
        ends: list[StepEnd] = []

        def move_state() -> Sequence[Any]:
            function.on_begin()
            return () if self.state is None or function is self.stock else self.state.variables

        try:
            run = run_steps(
                function.function,
                self.arguments,
                resident_bytes=self.resident.total,
                predicted_bytes=predicted_bytes,
                budget_bytes=budget_bytes,
                on_begin=move_state,
                on_first=lambda before, results: ends.append(StepEnd.of(variables, before, results)),
            )
        except tf.errors.InvalidArgumentError as error:
            if function is self.stock or "cycle" not in str(error):
                raise
            raise EmissionError(f"TensorFlow cannot run the rewritten step of {self.graph.name!r}: {error}") from error
        except tf.errors.ResourceExhaustedError as error:
            which = "stock" if function is self.stock else "rewritten"
            raise EmissionError(
                f"the {which} step of {self.graph.name!r}, with a predicted peak of {format_bytes(predicted_bytes)}, "
                "ran out of the device's memory: pass a lower budget or a smaller batch"
            ) from error
        finally:
            if isinstance(self.place, HostMemory):
                place_state(variables)
        function.on_end()
        if function is self.stock:
            self.reference.stock = ends[0]
            return run
        return replace(run, difference=self.find_difference(ends[0]))

    def time_in_turn(self, first: EmittedFunction, second: EmittedFunction) -> tuple[float, float] | None:
        if self.arguments is None or self.state is not None:
            return None  # Offloaded state would move at each change from one step to the other.
        arguments = self.arguments

        def run(one: EmittedFunction) -> None:
            one.on_begin()
            call_flat(one.function, arguments)
            one.on_end()

        variables = self.stock.function.graph.variables
        try:
            return time_in_turn(partial(run, first), partial(run, second), variables)
        except tf.errors.ResourceExhaustedError:
            return None

    def find_difference(self, end: StepEnd) -> StepDifference | None:
        """Compares the results of a rewritten step with the stock step's; returns None if that was not measured.

        If they differ by more than rounding, the stock step runs once more, from variables that differ in their last
        bit. The difference between both stock steps shows how much of it rounding alone may cause.
        """
        dtypes = {output.dtype for op in self.training_graph.ops.ops for output in op.outputs}
        difference = self.reference.compare(end, dtypes)
        if difference is None or self.arguments is None or self.reference.nudged is not None:
            return difference
        if difference.is_rounding and not difference.updates:
            return difference
        variables = self.stock.function.graph.variables
        with hold_interrupts(), keep_state(variables) as before:
            nudged = [nudge(value) for value in before]
            for variable, value, old in zip(variables, nudged, before, strict=True):
                if value is not old:
                    variable.assign(value)
            results = call_flat(self.stock.function, self.arguments)
            self.reference.note_nudged(StepEnd.of(variables, nudged, results, origin=before))
        return self.reference.compare(end, dtypes)

    def find_auto_budget(self) -> int:
        return self.resident.state + find_free_bytes(find_default_device(), margin=0.0)


def _warn_of_open_sizes(tensors: Sequence[tf.Tensor], name: str) -> None:
    if tensors:
        warn(
            f"{len(tensors)} tensors of {name!r} have sizes that depend on the data, and count as 0 bytes; the first, "
            f"of shape {tensors[0].shape}, comes from {tensors[0].op.name} ({tensors[0].op.type}): pass data=... and "
            "measure=True, so that planning can run a batch"
        )
