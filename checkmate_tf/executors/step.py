"""Defines `Step`, the interface between the search for a plan and either executor of a training step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import tensorflow as tf

from checkmate_tf.executors.emission.function import EmittedFunction
from checkmate_tf.executors.emission.ordering import Ordering
from checkmate_tf.graph import Graph
from checkmate_tf.measurement.step_run import StepRun
from checkmate_tf.origins import Origins
from checkmate_tf.profiling.costs import CostModel
from checkmate_tf.profiling.devices import DeviceFigures
from checkmate_tf.schedule import Schedule
from checkmate_tf.tracing.extraction import TrainingGraph


@dataclass(frozen=True, slots=True)
class ResidentBytes:
    """The bytes that are held throughout a training step.

    `prefetched` are the batches that `fit` prefetches for the next steps, if they are in the device's memory.
    `offloaded` are the bytes of optimizer state and frozen weights that are in a file or in host memory instead, which
    none of the other parts include.

    Example:

    >>> resident = ResidentBytes(parameters=400, optimizer=800, batch=64)
    >>> resident.state, resident.total
    (1200, 1264)
    """

    parameters: int = 0
    optimizer: int = 0
    other_state: int = 0
    batch: int = 0
    prefetched: int = 0
    offloaded: int = 0

    @property
    def state(self) -> int:
        """Returns the bytes that are held before the first batch."""
        return self.parameters + self.optimizer + self.other_state

    @property
    def total(self) -> int:
        """Returns the sum of all parts."""
        return self.state + self.batch + self.prefetched


Chunked = Literal["loss", "blocks"]


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of rows in which a step computes operations that treat its rows independently.

    Args:
        what: "loss" for the loss over the logits of a vocabulary, with its gradient and metrics; "blocks" for wide
            products and activations, such as those of feed-forward blocks and the scores of attention, and their
            gradients.
        num_rows: rows of the logits, or of the largest block. For a language model, a row is a token.
        chunk_rows: rows of each chunk.
        num_regions: number of losses or blocks that are computed in this way.

    Example:

    >>> Chunks("loss", num_rows=4096, chunk_rows=1000).num_chunks
    5
    """

    what: Chunked
    num_rows: int
    chunk_rows: int
    num_regions: int = 1

    @property
    def num_chunks(self) -> int:
        """Returns the number of chunks."""
        return -(-self.num_rows // self.chunk_rows)


@dataclass(frozen=True, slots=True)
class OffloadFolder:
    """A folder to which values may be copied.

    Args:
        bytes_per_s: rate of copies in either direction; None to measure it.
    """

    path: str
    bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Host memory to which values may be copied from the memory of a GPU.

    Args:
        bytes_per_s: rate of copies in either direction; None for the rate that the device's maker states.
    """

    bytes_per_s: float | None = None


class Step(Protocol):
    """One training step on one executor."""

    @property
    def graph(self) -> Graph:
        """Returns the training graph, including resident bytes. Costs are analytic until `add_costs` replaces them."""

    @property
    def resident(self) -> ResidentBytes:
        """Returns the bytes that are held throughout the step."""

    @property
    def origins(self) -> Origins:
        """Returns the Keras layers and source lines from which the nodes of the graph come."""

    @property
    def device(self) -> DeviceFigures | None:
        """Returns the device for which the step is planned if that is not here; None otherwise."""

    @property
    def stock(self) -> EmittedFunction:
        """Returns the step without rematerialization."""

    @property
    def stock_peak_bytes(self) -> int:
        """Returns the peak of `stock`, as far as it is known without a run."""

    @property
    def orderings(self) -> tuple[Ordering, ...]:
        """Lists the orderings in which a step can be emitted, the faster ones first."""

    @property
    def exceeds_as_stock(self) -> bool:
        """Returns whether a rewritten step is expected to exceed its prediction as far as the stock step does."""

    @property
    def signature(self) -> str:
        """Returns the dtypes and shapes of the step's arguments, such as "float32[8, 6], int64[8]"."""

    @property
    def training_graph(self) -> TrainingGraph:
        """Returns the operations behind the nodes of `graph`."""

    @property
    def chunks(self) -> tuple[Chunks, ...]:
        """Lists the parts that `graph` computes in chunks of rows, unlike `stock`."""

    def replace_function(self, function: tf.types.experimental.ConcreteFunction, chunks: Chunks) -> "Step":
        """Returns the same step with a function that computes a part of it in chunks. `stock` stays as it is."""

    def offload_to(self, place: OffloadFolder | HostMemory) -> "Step":
        """Returns the same step with costs of copies to a file in a folder or to host memory, for values to offload.

        Raises UnsupportedModelError if the executor cannot do so, and OffloadError if the folder cannot be written.
        """

    @property
    def movable_bytes(self) -> int:
        """Returns the bytes of optimizer state and frozen weights that may be offloaded; 0 without offloading."""

    @property
    def state_cost(self) -> int:
        """Returns the cost of reading and writing those that are offloaded, which `graph` leaves out."""

    def move_state(self, size_bytes: int) -> "Step":
        """Returns the same step with the largest of these variables offloaded, of at least so many bytes.

        Parts that are computed in chunks must have been replaced before.
        """

    @property
    def uses_xla(self) -> bool:
        """Returns whether XLA compiles the step as a whole."""

    def add_costs(self, costs: CostModel, *, on_node: Callable[[int, int], None] | None = None) -> "Step":
        """Returns the same step with the costs of a model.

        Args:
            on_node: called with the number of nodes timed and their total.
        """

    def arrange(self, schedule: Schedule) -> Schedule:
        """Returns a schedule in the form that the executor runs, such as without computations that nothing reads."""

    def emit(self, schedule: Schedule, ordering: Ordering) -> EmittedFunction:
        """Returns a step that follows a schedule that `arrange` has returned.

        Raises EmissionError if the schedule cannot be emitted, or if TensorFlow refuses the step.
        """

    def measure(
        self, function: EmittedFunction, predicted_bytes: int, budget_bytes: int | None = None
    ) -> StepRun | None:
        """Measures the peak of `stock` or of an emitted step; returns None if that is impossible.

        One run above the budget is enough to see that the step exceeds it. Raises EmissionError if TensorFlow refuses
        to run it, or if it runs out of the device's memory.
        """

    def time_in_turn(self, first: EmittedFunction, second: EmittedFunction) -> tuple[float, float] | None:
        """Runs two steps in turn, each `stock` or an emitted one, and returns the time of each, in seconds.

        Returns None if a run would not time them. Both must have been measured before.
        """

    def find_auto_budget(self) -> int:
        """Returns the bytes of the budget "auto": the model's state, and the free memory of the device."""
