"""Defines the kind of rule that makes operations wait in a step that XLA compiles."""

from collections.abc import Mapping

from checkmate_tf.executors.xla.order.progress import Progress
from checkmate_tf.executors.xla.rules.rule import Rule
from checkmate_tf.tracing.ops import TensorId


class OrderRule(Rule):
    """Makes operations wait, by data, for results that XLA would otherwise compute later.

    The methods are called as the nodes of a schedule are written. `index` is a node of the graph.
    """

    def find_awaited(self, progress: Progress, index: int) -> TensorId | None:
        """Returns a tensor for which a node that is not recomputed waits as a run of recomputation does, or None."""
        return None

    def tie_reads(self, progress: Progress, index: int) -> Mapping[str, str]:
        """Returns the names that a node that is not recomputed reads instead of some tensors, so that it waits."""
        return {}

    def list_given(self, progress: Progress, index: int) -> list[TensorId]:
        """Returns arguments of the step that a backward node reads late."""
        return []

    def list_more(self, progress: Progress, gradient: TensorId) -> list[TensorId]:
        """Returns the tensors for which a run of recomputation waits besides a gradient."""
        return []

    def list_first(self, progress: Progress, index: int) -> list[TensorId]:
        """Returns the results of a recomputed node for which later readers of the run's gradients wait."""
        return []

    def note(self, progress: Progress, index: int) -> None:
        """Records that a node is written."""
        return

    def finish(self, progress: Progress) -> None:
        """Ties the results of the step, once all nodes are written."""
        return
