"""Says what the search for a plan asks of a training step, whether TensorFlow's graph executor or XLA executes it."""

from typing import Protocol

from checkmate_tf.emission.function import EmittedFunction
from checkmate_tf.emission.ordering import Ordering
from checkmate_tf.graph import Graph
from checkmate_tf.measurement.step_run import StepRun
from checkmate_tf.origins import Origins
from checkmate_tf.planning.options import Request
from checkmate_tf.planning.plan import LossChunks, ResidentBytes
from checkmate_tf.progress import PlanningBar
from checkmate_tf.schedule import Schedule


class Step(Protocol):
    """A step is one training step on one executor."""

    @property
    def graph(self) -> Graph:
        """Gives the training graph, with all that is resident; costs are analytic until `add_costs` fills them in."""

    @property
    def resident(self) -> ResidentBytes:
        """Gives the bytes that are held throughout the step."""

    @property
    def origins(self) -> Origins:
        """Gives the Keras layers and source lines that the nodes of the graph come from."""

    @property
    def stock(self) -> EmittedFunction:
        """Gives the step without rematerialization."""

    @property
    def stock_peak_bytes(self) -> int:
        """Gives what `stock` takes, as far as it is known without running it."""

    @property
    def orderings(self) -> tuple[Ordering, ...]:
        """Lists the orderings that a step can be emitted in, those that are faster first."""

    @property
    def exceeds_as_stock(self) -> bool:
        """Tells whether a rewritten step is expected to take as much more than is predicted as the stock step does."""

    @property
    def chunks(self) -> LossChunks | None:
        """Gives the parts in which `graph` computes the loss; None where it does as `stock`."""

    def count_loss_rows(self) -> int:
        """Counts the rows over which the loss can be computed in chunks.

        Raises UnsupportedModelError, with the reason, where it cannot.
        """

    def predict_chunked(self, most_rows: int) -> int:
        """Predicts the peak of the step, nothing computed again, with the loss in chunks of at most so many rows."""

    def chunk_loss(self, most_rows: int) -> "Step":
        """Returns the same step with the loss in chunks of at most so many rows; `stock` stays as it is."""

    def add_costs(self, request: Request, bar: PlanningBar) -> "Step":
        """Returns the same step with the costs that the request asks for."""

    def emit(self, schedule: Schedule, ordering: Ordering) -> EmittedFunction:
        """Returns a step that follows a schedule."""

    def measure(
        self, function: EmittedFunction, predicted_bytes: int, budget_bytes: int | None = None
    ) -> StepRun | None:
        """Tells what the step takes that is `stock` or was emitted; None where that cannot be told.

        One run above the budget is enough to tell that it does not keep to it.

        Raises EmissionError where TensorFlow refuses to run it.
        """

    def find_auto_budget(self) -> int:
        """Tells what the budget "auto" stands for."""
