"""Makes backward operations wait for the recomputation that comes before them in the schedule.

XLA:GPU merges a recomputed kernel with a later one that reads the same tensors, if neither waits for the other, and so
computes both late (seen in JAX 0.10.2, for an H100). It then holds the gradient that the next product reads together
with the recomputed result. Only results that a product yields or reads are waited for, because XLA may compute others
within their readers. Results that only the run itself reads are left out, because XLA holds all tensors of a barrier
until the first fused kernel behind it has run.
"""

from dataclasses import dataclass

from checkmate_tf.executors.xla.model.index import is_product
from checkmate_tf.executors.xla.order.order_rule import OrderRule
from checkmate_tf.executors.xla.order.progress import Progress
from checkmate_tf.tracing.ops import TensorId


@dataclass(frozen=True)
class RecomputedFirst(OrderRule):
    """Makes later readers of a run's gradients wait for results of the run that products yield or read."""

    def list_first(self, progress: Progress, index: int) -> list[TensorId]:
        graph, computed = progress.graph, progress.graph.nodes[index].outputs
        newest = progress.find_newest_float(computed)
        if newest is None:
            return []
        position = progress.computed_at[computed[0]]
        later = progress.order[progress.run_ends.get(position, position + 1) :]
        if index in later:  # It is computed once more, so only what comes before that reads this result.
            later = later[: later.index(index)]
        users = {user for value in computed for user in graph.users[value]}.intersection(later)
        is_read = any(newest in progress.list_operands(user) for user in users)
        is_yielded = bool(users) and is_product(progress.copies.ops.ops[newest[0]].type)
        return [newest] if is_read or is_yielded else []
