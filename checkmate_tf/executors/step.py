"""Says what the search for a plan asks of a training step, whether TensorFlow's graph executor or XLA executes it."""

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
    """Resident bytes are held throughout a training step.

    `prefetched` are the batches that `fit` makes ready for the next steps, where these lie on the device.
    """

    parameters: int = 0
    optimizer: int = 0
    other_state: int = 0
    batch: int = 0
    prefetched: int = 0

    @property
    def state(self) -> int:
        """Sums what is there before the first batch comes."""
        return self.parameters + self.optimizer + self.other_state

    @property
    def total(self) -> int:
        """Sums all parts."""
        return self.state + self.batch + self.prefetched


Chunked = Literal["loss", "blocks"]


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks are the parts in which a step computes what treats its rows independently.

    Args:
        what: "loss" for the loss over the logits of a vocabulary, with its gradient and metrics; "blocks" for wide
            products and activations, such as those of feed-forward blocks and the scores of attention, and their
            gradients.
        num_rows: of the logits, or of the largest block: tokens, for a language model.
        chunk_rows: of each chunk.
        num_regions: how many losses or blocks are computed so.
    """

    what: Chunked
    num_rows: int
    chunk_rows: int
    num_regions: int = 1

    @property
    def num_chunks(self) -> int:
        """Counts the chunks."""
        return -(-self.num_rows // self.chunk_rows)


@dataclass(frozen=True, slots=True)
class OffloadFolder:
    """An offload folder is where values may be copied to.

    Args:
        bytes_per_s: that it takes and returns; None to measure it.
    """

    path: str
    bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Host memory is where values may be copied to from the memory of a GPU.

    Args:
        bytes_per_s: the rate of copies in either direction; None for the rate that the device's maker states.
    """

    bytes_per_s: float | None = None


class Step(Protocol):
    """A step is one training step on one executor."""

    @property
    def graph(self) -> Graph:
        """Returns the training graph, with all that is resident; costs are analytic until `add_costs` fills them in."""

    @property
    def resident(self) -> ResidentBytes:
        """Returns the bytes that are held throughout the step."""

    @property
    def origins(self) -> Origins:
        """Returns the Keras layers and source lines that the nodes of the graph come from."""

    @property
    def device(self) -> DeviceFigures | None:
        """Returns the device that the step is planned for, where it is not here; else None."""

    @property
    def stock(self) -> EmittedFunction:
        """Returns the step without rematerialization."""

    @property
    def stock_peak_bytes(self) -> int:
        """Returns the peak of `stock` as far as it is known without running it."""

    @property
    def orderings(self) -> tuple[Ordering, ...]:
        """Lists the orderings that a step can be emitted in, those that are faster first."""

    @property
    def exceeds_as_stock(self) -> bool:
        """Returns whether a rewritten step is expected to take as far above its prediction as the stock step."""

    @property
    def signature(self) -> str:
        """Returns the dtypes and shapes of the step's arguments, in short: "float32[8, 6], int64[8]"."""

    @property
    def training_graph(self) -> TrainingGraph:
        """Returns the operations behind the nodes of `graph`."""

    @property
    def chunks(self) -> tuple[Chunks, ...]:
        """Lists what `graph` computes in chunks of rows, unlike `stock`."""

    def replace_function(self, function: tf.types.experimental.ConcreteFunction, chunks: Chunks) -> "Step":
        """Returns the same step with a function that computes some of it in chunks; `stock` stays as it is."""

    def offload_to(self, place: OffloadFolder | HostMemory) -> "Step":
        """Returns the same step, whose values may be copied to a file in a folder or to host memory, at its cost there.

        Raises UnsupportedModelError where the executor cannot, and OffloadError where the folder cannot be written.
        """

    @property
    def uses_xla(self) -> bool:
        """Returns whether XLA compiles the step as a whole."""

    def add_costs(self, costs: CostModel, *, on_node: Callable[[int, int], None] | None = None) -> "Step":
        """Returns the same step with the costs of a model.

        Args:
            on_node: called with the number of nodes that were timed, and of all that are.
        """

    def arrange(self, schedule: Schedule) -> Schedule:
        """Returns a schedule as the executor runs it, for example without computations that nothing reads."""

    def emit(self, schedule: Schedule, ordering: Ordering) -> EmittedFunction:
        """Returns a step that follows a schedule, which `arrange` has returned.

        Raises EmissionError for a schedule that cannot be emitted, or where TensorFlow refuses the step.
        """

    def measure(
        self, function: EmittedFunction, predicted_bytes: int, budget_bytes: int | None = None
    ) -> StepRun | None:
        """Measures the peak of `stock` or of an emitted step; None where that is impossible.

        One run above the budget is enough to tell that it does not keep to it.

        Raises EmissionError where TensorFlow refuses to run it, or it runs out of the device's memory.
        """

    def find_auto_budget(self) -> int:
        """Finds what the budget "auto" stands for: the model's state, and all that the device has free."""
