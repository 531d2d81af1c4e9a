"""Models a training graph as a function of one size, such as the batch, between the sizes at which it was traced."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from checkmate_tf.errors import UnsupportedModelError
from checkmate_tf.graph import Graph
from checkmate_tf.profiling.scaling import fit_batch_scaling

# A model whose error exceeds this share of a graph's bytes does not fit it.
_TOLERANCE = 0.01


@dataclass(frozen=True, eq=False)
class SizeModel:
    """Bytes and costs as polynomials of the size, divided by the largest size traced.

    Args:
        like: the graph whose nodes and values all sizes have.
        value_bytes, workspace_bytes, costs: coefficients, the constant first, [degree + 1, num_values or num_nodes].
        resident_bytes: coefficients, [degree + 1, 1].
        cost_error: largest relative error of the step's cost at the traced sizes.
    """

    like: Graph
    largest: int
    value_bytes: np.ndarray
    workspace_bytes: np.ndarray
    resident_bytes: np.ndarray
    costs: np.ndarray
    cost_error: float

    def evaluate(self, size: int) -> Graph:
        """Returns the graph of a size."""
        value_bytes, workspace_bytes, costs, resident_bytes = (
            np.maximum(np.rint(_evaluate(size / self.largest, coefficients)), 0).astype(np.int64).tolist()
            for coefficients in (self.value_bytes, self.workspace_bytes, self.costs, self.resident_bytes)
        )
        values = tuple(
            replace(value, size_bytes=needed) for value, needed in zip(self.like.values, value_bytes, strict=True)
        )
        nodes = tuple(
            replace(node, workspace_bytes=needed, cost=cost)
            for node, needed, cost in zip(self.like.nodes, workspace_bytes, costs, strict=True)
        )
        return replace(self.like, values=values, nodes=nodes, resident_bytes=resident_bytes[0])


def fit_size_model(graphs: Mapping[int, Graph], *, degree: int) -> SizeModel:
    """Fits a model to the graphs of one step by size, all with the same nodes and values.

    Costs in ns that grow linearly are fitted as `fit_batch_scaling` does, and never fall.

    Args:
        graphs: at least `degree` + 2 of them, so that the error can be estimated.
        degree: 1 if bytes grow linearly, as they do with the batch.

    Raises UnsupportedModelError if bytes do not grow so.
    """
    if len(graphs) < degree + 2:
        raise ValueError(f"{len(graphs)} graphs are too few for a model of degree {degree}")
    sizes = sorted(graphs)
    taken = [graphs[size] for size in sizes]
    largest = sizes[-1]
    powers = np.vander(np.array(sizes) / largest, degree + 1, increasing=True)
    value_bytes = _fit(powers, [graph.sizes_bytes for graph in taken])
    resident_bytes = _fit(powers, [np.array([graph.resident_bytes]) for graph in taken])
    workspace_bytes = _fit(powers, [graph.arrays.workspace_bytes for graph in taken])
    for size, graph in zip(sizes, taken, strict=True):
        missed_bytes = np.abs(_evaluate(size / largest, value_bytes) - graph.sizes_bytes)
        if missed_bytes.sum() > _TOLERANCE * max(int(graph.sizes_bytes.sum()), 1):
            value = graph.values[int(missed_bytes.argmax())]
            raise UnsupportedModelError(
                f"the bytes of {graph.name!r} are not a polynomial of degree {degree} of the size: at {size}, "
                f"{value.name} takes {value.size_bytes} bytes and should take "
                f"{value.size_bytes - int(missed_bytes.max())} or {value.size_bytes + int(missed_bytes.max())}; "
                "take sizes that every layer divides evenly (multiple_of)"
            )
    if degree == 1 and taken[0].cost_unit == "ns":
        scaling = fit_batch_scaling({size: _rename_types(graphs[size], taken[-1]) for size in sizes})
        costs, error = np.array([scaling.fixed_ns, scaling.per_example_ns * largest]), scaling.relative_error
    else:
        costs = _fit(powers, [graph.costs for graph in taken])
        error = max(
            abs(_evaluate(size / largest, costs).sum() / max(graph.baseline_cost, 1) - 1)
            for size, graph in zip(sizes, taken, strict=True)
        )
    return SizeModel(taken[-1], largest, value_bytes, workspace_bytes, resident_bytes, costs, float(error))


def _fit(powers: np.ndarray, known: list[np.ndarray]) -> np.ndarray:
    """Fits coefficients by least squares, [degree + 1, num_columns]."""
    return np.linalg.lstsq(powers, np.array(known, dtype=float), rcond=None)[0]


def _evaluate(share: float, coefficients: np.ndarray) -> np.ndarray:
    return share ** np.arange(len(coefficients)) @ coefficients


def _rename_types(graph: Graph, like: Graph) -> Graph:
    """Copies the node types of another graph, because other operations of a node stand out at small sizes."""
    nodes = tuple(replace(node, op_type=other.op_type) for node, other in zip(graph.nodes, like.nodes, strict=True))
    return replace(graph, nodes=nodes)
