"""Counts the memory of a step's caller for the step's results, such as for metrics, which read predictions at once."""

from checkmate_tf.executors.xla.model.facts import Facts


def count_passing_bytes(facts: Facts, value: int) -> int:
    """Returns the bytes of a value that the caller reads at once, to add where it is computed and read; otherwise 0."""
    return int(facts.graph.sizes_bytes[value]) if _is_passing(facts, value) else 0


def count_caller_bytes(facts: Facts, value: int) -> int:
    """Returns the most bytes that the caller holds while it reads a value at once, as metrics do.

    XLA may run the gradient of the loss at the same time, and hold more. That does not count.
    """
    if not _is_passing(facts, value):
        return 0
    index = facts.index
    own = index.kernels[facts.graph.producer[value]]
    made = frozenset().union(*(index.readers[k] for k in own)) - index.in_nodes
    last = {k: max(index.readers[k], default=k) for k in made if not index.stock[k].is_returned}
    return max((sum(index.stock[k].size_bytes for k in last if k <= now <= last[k]) for now in last), default=0)


def is_read_at_end(facts: Facts, value: int) -> bool:
    """Returns whether the caller reads a result after all gradients are computed, such as to clip them."""
    index, written = facts.index, facts.index.written[value]
    last = max((reader for k in written for reader in index.readers[k]), default=-1)
    return last > max(index.in_nodes, default=-1) and not any(index.stock[k].is_returned for k in written)


def _is_passing(facts: Facts, value: int) -> bool:
    """Returns whether the caller reads a result of the step as soon as it exists, and does not return it."""
    written = facts.index.written[value]
    is_read = value in facts.graph.outputs and bool(written)
    is_returned = any(facts.index.stock[k].is_returned for k in written)
    return is_read and not is_returned and not is_read_at_end(facts, value)
