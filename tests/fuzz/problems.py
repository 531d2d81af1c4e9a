"""Random training graphs as `checkmate-graph/1` objects, made by the standard library alone."""

import random
from typing import Any

JsonGraph = dict[str, Any]

_SIZES = (  # what one graph's values are like, and how large one of them is
    lambda lot: lot.randint(0, 6),
    lambda lot: lot.choice((0, 1, 1, 1, 50, 1000)),
    lambda lot: 4 ** lot.randint(0, 15),
    lambda lot: lot.randint(0, 10**14 // 64),
)
_COSTS = (
    lambda lot: 1,
    lambda lot: lot.randint(0, 9),
    lambda lot: lot.choice((0, 1, 10**6)),
    lambda lot: lot.randint(0, 10**14 // 64),
)


def random_graph(lot: random.Random, *, max_nodes: int) -> JsonGraph:
    """Draws a chain with its way back, a chain with skips, or any graph; all or none of its nodes may be backward."""
    num_nodes = lot.randint(1, max_nodes)
    size, cost = lot.choice(_SIZES), lot.choice(_COSTS)
    reach = lot.choice((1, 2, 4, num_nodes))
    first_backward = lot.choice((0, num_nodes, num_nodes // 2, num_nodes // 2))
    is_plain, mirrors = lot.random() < 0.4, lot.random() < 0.4
    nodes: list[dict[str, Any]] = []
    values: list[dict[str, Any]] = []
    outputs_of: list[list[int]] = []
    for index in range(num_nodes):
        read = {lot.randrange(max(0, index - reach), index) for _ in range(lot.randint(0, 3)) if index}
        if mirrors and index:
            read = {index - 1, *([num_nodes - 1 - index] if index > num_nodes // 2 else [])}
        available = [value for node in sorted(read) for value in outputs_of[node]]
        inputs = available if mirrors else [value for value in available if lot.random() < 0.8]
        num_outputs = 1 if is_plain else lot.choice((0, 1, 1, 1, 1, 2, 3))
        outputs_of.append(list(range(len(values), len(values) + num_outputs)))
        values += [{"name": f"v{value}", "size_bytes": size(lot)} for value in outputs_of[-1]]
        nodes.append(
            {
                "name": f"n{index}",
                "op_type": "op",
                "inputs": inputs,
                "outputs": outputs_of[-1],
                "cost": cost(lot),
                "workspace_bytes": 0 if is_plain else lot.choice((0, 0, size(lot))),
                "is_backward": index >= first_backward,
                "recomputable": is_plain or lot.random() < 0.85,
                "inplace": not is_plain and lot.random() < 0.4,
            }
        )
    kept = lot.sample(range(len(values)), min(len(values), lot.randint(0, 2)))
    resident = lot.choice((0, 0, size(lot), 10**10))
    return {
        "format": "checkmate-graph/1", "name": "random", "cost_unit": "unit", "source": "",
        "resident_bytes": resident, "nodes": nodes, "values": values, "outputs": sorted(kept),
    }  # fmt: skip
