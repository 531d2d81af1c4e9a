"""How little memory a generated graph can take at all: what no schedule is below, and what one is sure to keep.

    python -m experiments.fastsa.bounds

No schedule is below what the largest node needs; none without recomputation below the minimum cuts
(topological_order.py). A schedule that computes every input of every node anew, and drops it once read, exists and
takes little, but its length is exponential in the depth of the graph: appendix A.1 of the paper says so of some graphs
and budgets.
"""

import time

from tabulate import tabulate

from checkmate_tf.graph import Graph
from checkmate_tf.simulator import find_peak_bound, simulate_stock
from checkmate_tf.solvers.ordering.topological_order import order_peak_lower_bound_bytes
from experiments.fastsa.instances import GENERATED
from experiments.layered_graphs import layered_graph


def computed_anew(graph: Graph) -> tuple[int, int]:
    """Peak in bytes and length of the schedule that never reads a value twice.

    A node's inputs are computed one after the other, those that take most beyond their own size first (Sethi and
    Ullman). For graphs of one sink, in which node i yields value i only and nothing else takes memory.
    """
    peak_bytes, lengths = [0] * len(graph.nodes), [0] * len(graph.nodes)
    sizes = graph.sizes_bytes.tolist()
    for index, node in enumerate(graph.nodes):
        held = most = 0
        for value in sorted(node.inputs, key=lambda value: sizes[value] - peak_bytes[value]):
            most = max(most, held + peak_bytes[value])
            held += sizes[value]
        peak_bytes[index] = max(most, held + sizes[index])
        lengths[index] = 1 + sum(lengths[value] for value in node.inputs)
    return peak_bytes[-1], lengths[-1]


def main() -> None:
    rows = []
    for name, num_nodes in GENERATED.items():
        graph = layered_graph(num_nodes, seed=0)
        baseline = simulate_stock(graph)
        cut_bytes = order_peak_lower_bound_bytes(graph, baseline, deadline_s=time.perf_counter() + 20)
        peak_bytes, length = computed_anew(graph)
        percents = [
            100 * size / baseline.peak_bytes for size in (find_peak_bound(graph).peak_bytes, cut_bytes, peak_bytes)
        ]
        rows.append([name, *percents, f"{length:.0e}"])
    headers = ("graph", "peak bound, %", "least without recomputing, at least, %", "computed anew, %", "its length")
    print(tabulate(rows, headers, "pipe", floatfmt=".1f"))


if __name__ == "__main__":
    main()
