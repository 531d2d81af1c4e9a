"""Predicts costs at batch sizes that were not measured, by a straight line for each node, with the error."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from checkmate_tf.errors import ProfileError
from checkmate_tf.graph import Graph
from checkmate_tf.profiling.costs import NodeCosts


@dataclass(frozen=True)
class BatchScaling:
    """The cost of a node is `fixed_ns + per_example_ns * batch_size`, both float [num_nodes], neither below 0.

    `relative_error` is that of the whole step's cost: the largest over the measured batch sizes if each is predicted
    from the others. Sizes at the ends are extrapolated. `batch_sizes` are the measured ones, in ascending order.
    """

    batch_sizes: tuple[int, ...]
    fixed_ns: np.ndarray
    per_example_ns: np.ndarray
    relative_error: float

    def find_node_costs(self, batch_size: int) -> NodeCosts:
        """Returns the predicted costs at a batch size. Raises ProfileError for one below 1."""
        if batch_size < 1:
            raise ProfileError(f"batch size {batch_size} is below 1; give a whole number of at least 1")
        costs = self.fixed_ns + self.per_example_ns * batch_size
        return NodeCosts("ns", tuple(round(cost) for cost in costs))


def fit_batch_scaling(graphs: Mapping[int, Graph]) -> BatchScaling:
    """Fits lines through measured graphs of one model, by batch size.

    Raises ProfileError for fewer than three sizes, from which no error can be estimated, for costs that are not times,
    and for graphs whose nodes differ in number or kind.
    """
    sizes = tuple(sorted(graphs))
    if len(sizes) < 3:
        raise ProfileError(f"batch sizes {list(sizes)} are too few: measure at least three, to estimate the error")
    first = graphs[sizes[0]]
    for size in sizes:
        if graphs[size].cost_unit != "ns":
            raise ProfileError(f"costs at batch size {size} are in {graphs[size].cost_unit!r}: measure them, in ns")
        if [node.op_type for node in graphs[size].nodes] != [node.op_type for node in first.nodes]:
            raise ProfileError(
                f"the graphs at batch sizes {sizes[0]} and {size} have different nodes: "
                "small values are grouped by size; choose sizes closer together"
            )
    costs = np.array([graphs[size].costs for size in sizes], dtype=float)
    errors = []
    for left_out in range(len(sizes)):
        kept = [index for index in range(len(sizes)) if index != left_out]
        fixed, slope = _fit_lines([sizes[index] for index in kept], costs[kept])
        total = costs[left_out].sum()
        errors.append(abs((fixed + slope * sizes[left_out]).sum() / total - 1) if total else 0.0)
    return BatchScaling(sizes, *_fit_lines(sizes, costs), relative_error=max(errors))


def _fit_lines(sizes: tuple[int, ...] | list[int], costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fits by least squares with both coefficients at least 0, for costs [num_sizes, num_nodes]."""
    x = np.array(sizes, dtype=float)
    centered = x - x.mean()
    slope = np.maximum(centered @ costs / (centered @ centered), 0.0)
    fixed = costs.mean(axis=0) - slope * x.mean()
    through_zero = x @ costs / (x @ x)
    return np.maximum(fixed, 0.0), np.where(fixed < 0, through_zero, slope)
