"""The training graph: what it derives and what it refuses."""

import math
import pickle
from dataclasses import replace
from typing import Any

import pytest

from checkmate_tf.errors import CheckmateError, GraphError
from checkmate_tf.graph import Graph, Node, Value
from tests.graphs import graph_of, training_chain


def diamond() -> Graph:
    """a -> b and c -> d, where b has two values and d reads one of them."""
    nodes = (
        Node("a", "op", (), (0,), 1),
        Node("b", "op", (0,), (1, 2), 2),
        Node("c", "op", (0,), (3,), 3),
        Node("d", "op", (2, 3), (4,), 4),
    )
    return Graph(nodes, tuple(Value(name, 10) for name in ("a", "b0", "b1", "c", "d")), (4,))


def test_derived_relations() -> None:
    graph = diamond()
    assert graph.producer == (0, 1, 1, 2, 3)
    assert graph.users == ((1, 2), (), (3,), (3,), ())
    assert graph.predecessors == ((), (0,), (0,), (1, 2))
    assert graph.successors == ((1, 2), (3,), (3,), ())
    assert graph.sizes_bytes.tolist() == [10] * 5
    assert graph.costs.tolist() == [1, 2, 3, 4]
    assert graph.baseline_cost == 10


def test_chain_reads_gradient_input_and_output() -> None:
    graph = training_chain(2)
    assert [node.name for node in graph.nodes] == ["f0", "f1", "loss", "b1", "b0"]
    assert graph.predecessors == ((), (0,), (1,), (0, 1, 2), (0, 3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": (4,)}, r"node 1 \(b\) reads value 4 \(d\), which no earlier node computes"),
        ({"inputs": (1,)}, "which no earlier node computes"),
        ({"inputs": (0, 0)}, "name a value twice"),
        ({"inputs": (-1,)}, "-1 is not the index of a value"),
        ({"inputs": (5,)}, r"5 is not the index of a value \(0 to 4\)"),
        ({"inputs": (True,)}, "True is not the index"),
        ({"outputs": (1, 0)}, r"value 0 \(a\) has two producers"),
        ({"outputs": (1,)}, r"node 3 \(d\) reads value 2 \(b1\), which no earlier node computes"),
        ({"cost": math.nan}, r"cost of node 1 \(b\) is nan"),
        ({"cost": math.inf}, r"cost of node 1 \(b\) is inf"),
        ({"cost": -1}, "is -1; it must be an integer of at least 0"),
        ({"cost": 1.5}, "is 1.5; it must be an integer"),
        ({"cost": True}, "is True"),
        ({"cost": 10**19}, "at most"),
        ({"workspace_bytes": -4}, r"workspace_bytes of node 1 \(b\) is -4"),
    ],
)
def test_malformed_node_is_refused(changes: dict[str, Any], message: str) -> None:
    graph = diamond()
    nodes = (graph.nodes[0], replace(graph.nodes[1], **changes), *graph.nodes[2:])
    with pytest.raises(GraphError, match=message):
        replace(graph, nodes=nodes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": ()}, "has no nodes"),
        ({"outputs": (9,)}, "outputs of graph 'graph': 9 is not the index"),
        ({"outputs": (4, 4)}, "name a value twice"),
        ({"resident_bytes": -1}, "resident_bytes of graph 'graph' is -1"),
        ({"copies_hide": 1}, "copies_hide of graph 'graph' is 1; it must be True or False"),
        ({"values": tuple(Value("v", -7) for _ in range(5))}, r"size_bytes of value 0 \(v\) is -7"),
        ({"values": (*diamond().values, Value("orphan", 1))}, r"no node computes value 5 \(orphan\)"),
    ],
)
def test_malformed_graph_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        replace(diamond(), **changes)


def test_cycle_is_refused() -> None:
    with pytest.raises(GraphError, match="cycle"):
        graph_of({"a": "b", "b": "a"})


def test_errors_are_of_the_package_and_value_errors() -> None:
    assert issubclass(GraphError, CheckmateError)
    assert issubclass(GraphError, ValueError)


def test_graph_can_be_pickled_while_another_thread_derives_relations() -> None:
    class Name(str):
        def __reduce__(self) -> tuple[type, tuple[str]]:
            assert (graph.users, graph.costs.sum()) == (diamond().users, 10)  # as another thread would at this moment
            return str, (str(self),)

    graph = replace(diamond(), name=Name("diamond"))
    assert pickle.loads(pickle.dumps(graph)) == graph


@pytest.mark.parametrize("field", ["size_bytes", "cost"])
def test_sums_beyond_64_bits_are_refused(field: str) -> None:
    # 100,000 of the greatest come to 10**19, which is above 2**63.
    values = tuple(Value("v", 10**14 if field == "size_bytes" else 1) for _ in range(1001))
    nodes = tuple(Node("n", "op", (), (index,), 10**14 if field == "cost" else 1) for index in range(1001))
    with pytest.raises(GraphError, match=r"sum to 1001.*must come to at most 100000000000000000"):
        Graph(nodes, values)
    assert Graph(nodes[:999], values[:999]).baseline_cost == (999 * 10**14 if field == "cost" else 999)
