"""Grappler's recomputation: TensorFlow's own rewrite of a graph, before it runs, that recomputes cheap operations.

The rewrite is off by default. Where it is on, Grappler takes every operation of a fixed list of cheap ones whose
result a gradient reads, and computes it again just before that. It knows gradients by their name scope, which is
"gradients/" unless the configuration names another; Keras's are below "gradient_tape/".
"""

from typing import Any

import keras
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.eager import context

_GRADIENTS_SCOPE = "gradient_tape/"
_PREFIX = "Recomputed/"  # of the operations that Grappler adds, in any scope


def recompute_cheap_operations(model: keras.Model) -> None:
    """Makes a compiled model's training steps run as Grappler rewrites them; steps of other models stay as they are."""
    model.make_train_function()
    step = model.train_function
    options = context.FunctionCallOptions(config_proto=_configuration())

    def run(*arguments: Any) -> Any:
        before = context.context().function_call_options
        context.context().function_call_options = options
        try:
            return step(*arguments)
        finally:
            context.context().function_call_options = before

    model.train_function = run


def count_recomputed(model: keras.Model, batch: tuple[Any, Any]) -> int:
    """Returns the number of operations that Grappler adds to recompute a value, in a step that this runs.

    The step must not have run with the same shapes before: TensorFlow reports a graph when it makes it ready.
    """
    context.context().enable_run_metadata()
    try:
        model.train_on_batch(*batch)
        graphs = context.context().export_run_metadata().function_graphs
    finally:
        context.context().disable_run_metadata()
    names = [node.name for graph in graphs for node in graph.post_optimization_graph.node]
    return sum(_PREFIX in name for name in names)


def _configuration() -> config_pb2.ConfigProto:
    configuration = config_pb2.ConfigProto()
    configuration.CopyFrom(context.context().config)
    rewrites = configuration.graph_options.rewrite_options
    rewrites.memory_optimization = rewriter_config_pb2.RewriterConfig.RECOMPUTATION_HEURISTICS
    rewrites.memory_optimizer_target_node_name_scope = _GRADIENTS_SCOPE
    return configuration
