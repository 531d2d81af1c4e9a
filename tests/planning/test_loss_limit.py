"""Whether reports say that the loss alone keeps every schedule above a peak, on graphs counted by hand."""

from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.origins import NodeOrigin, Origins, ValueType, guess_origins
from checkmate_tf.planning.loss_limit import explain_loss_limit
from checkmate_tf.reports.summary import summarize
from tests.plans import make_plan

GRADIENT = "gradient_tape/compile_loss/sparse_categorical_crossentropy/mul"


def make_graph(hidden_bytes: int, loss_type: str, gradient_name: str) -> Graph:
    """Two hidden layers, a loss whose gradient takes a mebibyte, and gradients that read it, and the first layer."""
    sizes = (hidden_bytes, hidden_bytes, 2**20, 2**20, 2**10, 2**10)
    nodes = (
        Node("first", "Relu", (), (0,), 1),
        Node("second", "Relu", (0,), (1,), 1),
        Node("loss", loss_type, (1,), (2,), 1),
        Node(gradient_name, "Mul", (2,), (3,), 1, is_backward=True, inplace=True),
        Node("gradient_tape/logits/MatMul", "MatMul", (1, 3), (4,), 1, is_backward=True),
        Node("gradient_tape/first/ReluGrad", "ReluGrad", (0, 4), (5,), 1, is_backward=True),
    )
    return Graph(nodes, tuple(Value(f"v{number}", size) for number, size in enumerate(sizes)))


def test_a_loss_that_needs_most_is_named_with_what_it_takes() -> None:
    """The weights' gradient reads a hidden layer and the logits' gradient: 1 KiB more than the loss needs."""
    graph = make_graph(2**10, "MatMul+Softmax", GRADIENT)
    types = tuple(ValueType((64, 4096), "float32") for _ in graph.values)
    said = explain_loss_limit(graph, Origins(tuple(NodeOrigin() for _ in graph.nodes), types))
    assert "than 1.00 MiB" in said
    assert "1.00 MiB at once (float32 [64, 4096])" in said
    assert "best_batch" in said
    assert "at once." in explain_loss_limit(graph, guess_origins(graph))


def test_a_loss_is_known_by_its_operation_where_no_scope_says_so() -> None:
    graph = make_graph(2**11, "MatMul+SparseSoftmaxCrossEntropyWithLogits", "scaled")
    assert not explain_loss_limit(graph, guess_origins(graph)), "the weights' gradient needs most"
    least = Graph(graph.nodes[:3], graph.values[:3])
    assert "because of the loss" in explain_loss_limit(least, guess_origins(least))


def test_other_steps_that_need_most_are_no_loss() -> None:
    graph = make_graph(2**21, "SparseSoftmaxCrossEntropyWithLogits", GRADIENT)
    assert explain_loss_limit(graph, guess_origins(graph)) == ""


def test_a_plan_says_so() -> None:
    """The first layer is computed again for its gradient: beside the loss's it has no place."""
    graph = make_graph(2**10, "Softmax", GRADIENT)
    assert "because of the loss" in summarize(make_plan(graph, 2**20 + 2**11).view)
    assert "because of the loss" not in summarize(make_plan(graph, "100%").view), "nothing is computed again"
