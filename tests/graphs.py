"""Named graphs and hypothesis strategies for the tests."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st

from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.schedule import Order, Schedule
from checkmate_tf.simulator import find_peak_bound, simulate_stock
from checkmate_tf.solvers import Problem
from experiments.published_graphs import published_graph


def published(name: str) -> Graph:
    """A published benchmark graph by its name; skips the test where it is not here."""
    try:
        return published_graph(name)
    except FileNotFoundError as error:
        pytest.skip(str(error))


def graph_of(
    edges: dict[str, str],
    *,
    sizes: dict[str, int] | None = None,
    costs: dict[str, int] | None = None,
    outputs: str = "",
) -> Graph:
    """A graph of nodes with one value each: `edges` maps a node to the names that it reads, in order."""
    names = list(edges)
    index = {name: position for position, name in enumerate(names)}
    nodes = tuple(
        Node(name, "op", tuple(index[source] for source in edges[name]), (index[name],), (costs or {}).get(name, 1))
        for name in names
    )
    values = tuple(Value(name, (sizes or {}).get(name, 1)) for name in names)
    return Graph(nodes, values, tuple(index[name] for name in outputs))


def training_chain(num_layers: int, *, size: int = 1, cost: int = 1) -> Graph:
    """A linear network: forward nodes, one loss, and gradient nodes that read layer input, output and gradient."""
    nodes = [Node(f"f{i}", "forward", (i - 1,) if i else (), (i,), cost) for i in range(num_layers)]
    nodes.append(Node("loss", "loss", (num_layers - 1,), (num_layers,), cost))
    for i in reversed(range(num_layers)):
        reads = tuple(v for v in (i - 1, i, len(nodes) - 1) if v >= 0)
        nodes.append(Node(f"b{i}", "backward", reads, (len(nodes),), cost, is_backward=True))
    values = tuple(Value(node.name, size) for node in nodes)
    return Graph(tuple(nodes), values, name=f"chain-{num_layers}")


@st.composite
def graphs(draw: st.DrawFn, *, max_nodes: int = 8, plain: bool = False) -> Graph:
    """Random training graphs: with several outputs a node, workspace, in-place and non-recomputable nodes,
    or, when `plain`, one value a node and nothing else (the papers' model)."""
    num_nodes = draw(st.integers(2, max_nodes))
    nodes: list[Node] = []
    values: list[Value] = []
    for index in range(num_nodes):
        reads = draw(st.lists(st.sampled_from(range(len(values))), max_size=3, unique=True)) if values else []
        num_outputs = 1 if plain else draw(st.sampled_from([1, 1, 1, 2]))
        outputs = tuple(range(len(values), len(values) + num_outputs))
        values += [Value(f"v{value}", draw(st.integers(0, 6))) for value in outputs]
        nodes.append(
            Node(
                f"n{index}",
                "op",
                tuple(sorted(reads)),
                outputs,
                draw(st.integers(0, 9)),
                workspace_bytes=0 if plain else draw(st.sampled_from([0, 0, 2])),
                recomputable=plain or draw(st.sampled_from([True, True, True, False])),
                inplace=not plain and draw(st.booleans()),
            )
        )
    kept = draw(st.lists(st.sampled_from(range(len(values))), max_size=2, unique=True))
    return Graph(
        tuple(nodes), tuple(values), tuple(sorted(kept)), 0 if plain else draw(st.sampled_from([0, 3])), name="random"
    )


@st.composite
def training_graphs(draw: st.DrawFn, *, max_layers: int = 3) -> Graph:
    """Linear networks of random sizes and costs, where most budgets below the peak need recomputation."""
    chain = training_chain(draw(st.integers(2, max_layers)))
    sizes, costs = (draw(st.lists(st.integers(1, 6), min_size=9, max_size=9)) for _ in range(2))
    return replace(
        chain,
        nodes=tuple(replace(node, cost=cost) for node, cost in zip(chain.nodes, costs, strict=False)),
        values=tuple(replace(value, size_bytes=size) for value, size in zip(chain.values, sizes, strict=False)),
    )


def tight_problem(seed: int) -> Problem:
    """A plain random graph of 6 to 9 nodes that read up to three others each, and a budget below its peak."""
    random = np.random.default_rng(seed)
    num_nodes = int(random.integers(6, 10))
    nodes, values = [], []
    for index in range(num_nodes):
        reads = set(random.integers(0, index, size=random.integers(1, 4)).tolist()) if index else set()
        nodes.append(Node(f"n{index}", "op", tuple(sorted(reads)), (index,), int(random.integers(1, 6))))
        values.append(Value(f"v{index}", int(random.integers(1, 7))))
    graph = Graph(tuple(nodes), tuple(values), name=f"tight-{seed}")
    least, peak = find_peak_bound(graph).peak_bytes, simulate_stock(graph).peak_bytes
    return Problem(graph, int(random.integers(least, max(least + 1, peak))))


@st.composite
def schedules(draw: st.DrawFn, graph: Graph, *, order: Order = "free", max_repeats: int = 8) -> Schedule:
    """Random valid schedules of a graph: any topological order when `order` is "free", repeats anywhere."""
    positions: list[int] = []
    waiting = list(range(len(graph.nodes)))
    repeats_left = draw(st.integers(0, max_repeats))
    while waiting or repeats_left:
        repeatable = sorted({node for node in positions if graph.nodes[node].recomputable})
        if not waiting and not repeatable:
            break
        if repeatable and repeats_left and (not waiting or draw(st.booleans())):
            positions.append(draw(st.sampled_from(repeatable)))
            repeats_left -= 1
            continue
        ready = [node for node in waiting if not set(graph.predecessors[node]) & set(waiting)]
        node = draw(st.sampled_from(ready)) if order == "free" else waiting[0]
        waiting.remove(node)
        positions.append(node)
    return Schedule(tuple(positions))


# MOCCASIN's slides: nodes 0 to 9 in a row, 8 also reads 1 and 7 also reads 2; sizes of 50 on the left and 1 on the
# right (the row folded in two gives five nodes a side), each of duration 1. The drawing is not in the text: 0 and 9
# and 3 and 6 may be joined too.
SLIDES = graph_of(
    {"0": "", "1": "0", "2": "1", "3": "2", "4": "3", "5": "4", "6": "5", "7": "26", "8": "17", "9": "8"},
    sizes={name: 50 for name in "01234"},
)
