"""Patterns of layers, operations and functions: what they match, and what they say where they match nothing."""

import pytest

from checkmate_tf.errors import CheckmateError, PatternError
from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.origins import NodeOrigin, Origins, ValueType
from checkmate_tf.patterns import check_patterns, combine, steer


def make_graph() -> tuple[Graph, Origins]:
    """Two layers and a sum, with their gradients; the first layer's seed must run once."""
    rows = [
        ("net/encoder_1/attention_1/MatMul", "encoder/attention", "", False),
        ("net/encoder_1/attention_1/seed", "encoder/attention", "", False),
        ("net/encoder_1/Add", "encoder", "0 1", False),
        ("loss/Mean", "", "2", False),
        ("gradient_tape/net/encoder_1/attention_1/MatMul_1", "encoder/attention", "0 2 3", True),
    ]
    nodes = tuple(
        Node(name, "op", tuple(map(int, reads.split())), (i,), 1, is_backward=back, recomputable="seed" not in name)
        for i, (name, _, reads, back) in enumerate(rows)
    )
    graph = Graph(nodes, tuple(Value(name, 4) for name, *_ in rows), outputs=(3, 4), name="net")
    return graph, Origins(tuple(NodeOrigin(layer) for _, layer, *_ in rows), (ValueType(),) * len(rows))


@pytest.mark.parametrize(
    ("pattern", "nodes"),
    [
        ("*attention", {0, 1, 4}),
        ("encoder/*", {0, 1, 2, 4}),
        ("encoder/Add", {2}),
        ("net/encoder_?/*/MatMul", {0}),
        ("loss/Mean", {3}),
        (lambda node: node.is_backward, {4}),
    ],
)
def test_patterns_match_layers_and_operations(pattern, nodes):
    (found,) = steer(*make_graph(), keep=[pattern], recompute=[])
    assert found.nodes == nodes


def test_to_recompute_a_pattern_matches_the_forward_pass_and_counts_what_cannot_be():
    (found,) = steer(*make_graph(), keep=[], recompute=["*attention*"])
    assert (found.nodes, found.num_fixed) == ({0}, 1)


def test_constraints_of_several_patterns_are_one():
    found = steer(*make_graph(), keep=["loss/*", "encoder/Add"], recompute=["*MatMul"])
    assert combine(found).keep == {2, 3}
    assert combine(found).recompute == {0}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            {"keep": ["*atention*"]},
            r"keep '\*atention\*' matches no layer and no operation of 'net'. Close to it: .*attention",
        ),
        ({"keep": ["encoder/atention"]}, "Close to it: encoder/attention"),
        ({"keep": ["zzz"]}, "The layers are encoder/attention, encoder and so on"),
        (
            {"keep": [lambda node: False]},
            "It is called with each node, such as that of net/encoder_1/attention_1/MatMul",
        ),
        ({"recompute": ["*seed"]}, "matches nothing that can be recomputed: of net/.*/seed, it must run exactly once"),
        ({"recompute": ["gradient_tape*"]}, "MatMul_1, it is not of the forward pass"),
        ({"recompute": ["loss/Mean"]}, "loss/Mean, the step returns its result"),
        (
            {"keep": ["encoder"], "recompute": ["*Add"]},
            r"keep 'encoder' and recompute '\*Add' both match node net/encoder_1/Add",
        ),
    ],
)
def test_patterns_that_constrain_nothing_or_contradict_are_refused(words, message):
    with pytest.raises(PatternError, match=message):
        steer(*make_graph(), **{"keep": [], "recompute": [], **words})


@pytest.mark.parametrize("patterns", ["*attention*", ["", "a"], [3], None])
def test_patterns_are_a_list_of_texts_and_functions(patterns):
    with pytest.raises(CheckmateError, match="keep"):
        check_patterns(patterns, "keep")
