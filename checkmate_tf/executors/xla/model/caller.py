"""Counts what the caller of a step holds of its results, such as metrics, which read predictions at once."""

from checkmate_tf.executors.xla.model.facts import Facts


def count_passing_bytes(facts: Facts, value: int) -> int:
    """Counts what is held, where a value is computed and where it is read, of one that the caller reads at once."""
    return int(facts.graph.sizes_bytes[value]) if _is_passing(facts, value) else 0


def count_caller_bytes(facts: Facts, value: int) -> int:
    """Counts the most that the caller holds at a time of what it makes of a value at once, as metrics do.

    XLA may run the gradient of the loss at the same time, and hold more, which does not count.
    """
    if not _is_passing(facts, value):
        return 0
    index = facts.index
    own = index.kernels[facts.graph.producer[value]]
    made = frozenset().union(*(index.readers[k] for k in own)) - index.in_nodes
    last = {k: max(index.readers[k], default=k) for k in made if not index.stock[k].is_returned}
    return max((sum(index.stock[k].size_bytes for k in last if k <= now <= last[k]) for now in last), default=0)


def is_read_at_end(facts: Facts, value: int) -> bool:
    """Returns whether the caller reads a result when all gradients are computed, as it does to clip them."""
    index, written = facts.index, facts.index.written[value]
    last = max((reader for k in written for reader in index.readers[k]), default=-1)
    return last > max(index.in_nodes, default=-1) and not any(index.stock[k].is_returned for k in written)


def _is_passing(facts: Facts, value: int) -> bool:
    """Returns whether the caller reads a result of the step as soon as it is there, and does not return it."""
    written = facts.index.written[value]
    is_read = value in facts.graph.outputs and bool(written)
    is_returned = any(facts.index.stock[k].is_returned for k in written)
    return is_read and not is_returned and not is_read_at_end(facts, value)
