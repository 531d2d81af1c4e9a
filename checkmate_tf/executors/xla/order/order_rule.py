"""The kind of rule that says what waits in a step that XLA compiles."""

from collections.abc import Mapping

from checkmate_tf.executors.xla.order.progress import Progress
from checkmate_tf.executors.xla.rules.rule import Rule
from checkmate_tf.tracing.ops import TensorId


class OrderRule(Rule):
    """Makes operations wait, by data, for results that XLA would compute later.

    The hooks are called as the nodes of a schedule are written. `index` is a node of the graph.
    """

    def find_awaited(self, progress: Progress, index: int) -> TensorId | None:
        """Returns the tensor that a node waits for as a recomputation does, though it is none; else None."""
        return None

    def tie_reads(self, progress: Progress, index: int) -> Mapping[str, str]:
        """Returns what a node that is not recomputed reads in the place of some tensors, so that it waits."""
        return {}

    def list_given(self, progress: Progress, index: int) -> list[TensorId]:
        """Returns tensors of the step's arguments that a backward node reads late."""
        return []

    def list_more(self, progress: Progress, gradient: TensorId) -> list[TensorId]:
        """Returns the tensors that a run of recomputation waits for beside a gradient."""
        return []

    def note(self, progress: Progress, index: int) -> None:
        """Notes that a node is written."""
        return

    def finish(self, progress: Progress) -> None:
        """Ties the results of the step, once all nodes are written."""
        return
