"""The private names of TensorFlow and Keras that the project leans on do what it needs; each test says what breaks."""

import gc
import importlib
import os
import sys
import weakref
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from checkmate_tf import errors, keras_private, tf_private


@pytest.fixture
def model() -> keras.Model:
    built = keras.Sequential([keras.Input((4,)), layers.Dense(3, kernel_regularizer="l2"), layers.Dropout(0.5)])
    built.compile("sgd", "mse")
    return built


def test_call_flat_runs_a_function_of_nested_arguments() -> None:
    """Else steps cannot be run on flat tensors, and so not be measured."""
    step = tf.function(lambda pair: {"sum": pair[0] + pair[1]}).get_concrete_function(
        (tf.TensorSpec((2,)), tf.TensorSpec((2,)))
    )
    assert tf_private.call_flat(step, [tf.ones(2), tf.ones(2)])["sum"].numpy().tolist() == [2, 2]


def test_creation_numbers_rise() -> None:
    """Else captured variables and their sizes are told in an order that differs from run to run."""
    first, second = tf.ones(1), tf.ones(1)
    assert tf_private.get_creation_number(first) < tf_private.get_creation_number(second)


def test_functions_of_a_graph_are_found_by_name() -> None:
    """Else what an operation that calls a function does with memory and state is not known."""
    inner = tf.function(lambda x: tf.tanh(x) + 1.0)
    outer = tf.function(lambda x: inner(x)).get_concrete_function(tf.TensorSpec((2,)))
    call = next(op for op in outer.graph.get_operations() if "PartitionedCall" in op.type)
    definition = tf_private.find_function_definition(outer.graph, call.get_attr("f").name)
    assert definition is not None
    assert "Tanh" in {node.op for node in definition.node_def}
    assert tf_private.find_function_definition(outer.graph, "nothing") is None


def test_operations_tell_whether_they_are_stateful() -> None:
    """Else random operations would be recomputed with other numbers."""
    definition = tf_private.find_op_definition("RandomUniform")
    assert definition is not None
    assert definition.is_stateful
    assert tf_private.find_op_definition("NoSuchOperation") is None


def test_reference_types_are_told_apart() -> None:
    """Else TensorFlow 1 variables would be taken for values."""
    assert not tf_private.is_reference(tf.float32)
    assert tf_private.is_reference(tf.dtypes.as_dtype(tf.float32.as_datatype_enum + 100))


def test_frames_of_an_operation_begin_where_the_step_is_traced() -> None:
    """Else the line that calls `rematerialize` would be named as the source of every layer of Keras."""
    step = tf.function(lambda x: tf.tanh(x)).get_concrete_function(tf.TensorSpec((2,)))
    op = next(op for op in step.graph.get_operations() if op.type == "Tanh")
    frames = tf_private.list_traced_frames(op)
    assert "get_concrete_function" not in {frame.name for frame in frames}
    assert "get_concrete_function" in {frame.name for frame in op.traceback}
    assert {frame.filename for frame in frames} >= {__file__}


def test_layers_that_are_called_are_frames(model: keras.Model) -> None:
    """Else nobody is told which layer an operation belongs to: its name scopes are more than those of layers."""
    step = tf.function(lambda x: model(x), autograph=False).get_concrete_function(tf.TensorSpec((2, 4)))
    op = next(op for op in step.graph.get_operations() if op.type == "MatMul")
    assert sum(map(keras_private.is_layer_call, tf_private.list_traced_frames(op))) == 2
    assert op.name == f"{model.name}_1/{model.layers[0].name}_1/MatMul"


def test_the_body_of_a_loop_is_a_graph() -> None:
    """Else what a loop holds cannot be counted."""
    step = tf.function(lambda x: tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, tf.tanh(x)), (0, x)))
    graph = step.get_concrete_function(tf.TensorSpec((2,))).graph
    loop = next(op for op in graph.get_operations() if op.type in ("While", "StatelessWhile"))
    assert "Tanh" in {op.type for op in tf_private.get_loop_body(loop).get_operations()}


def test_a_variable_handle_can_be_made_and_read() -> None:
    """Else operations that update a variable cannot be timed."""
    handle = tf_private.make_variable_handle(tf.ones((2, 3)))
    tf.raw_ops.AssignVariableOp(resource=handle, value=tf.ones((2, 3)))
    assert tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32).shape == (2, 3)


def test_a_variable_may_use_another_handle() -> None:
    """Else optimizer state cannot be moved to host memory."""
    variable = tf.Variable(tf.ones((2,)))
    handle = tf_private.make_variable_handle(variable)
    tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros((2,)))
    tf_private.set_variable_handle(variable, handle)
    assert variable.handle is handle
    variable.assign_add([1.0, 2.0])
    assert variable.numpy().tolist() == [1.0, 2.0]


def test_replicas_are_numbered_in_python() -> None:
    """Else the plan of each replica cannot be chosen while it is traced."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    seen = []
    strategy.run(lambda: seen.append(tf_private.get_replica_number(tf.distribute.get_replica_context())))
    assert seen == [0]


def test_the_memory_limit_of_a_device_is_told() -> None:
    """Else `budget="auto"` does not know what an accelerator has."""
    assert (tf_private.find_memory_limit("CPU", "0") or 0) > 0
    assert tf_private.find_memory_limit("GPU", "99") is None


def test_onednn_is_known_to_be_on_or_off() -> None:
    """Else measurements with and without its kernels share a cache."""
    assert tf_private.has_onednn() == (os.environ["TF_ENABLE_ONEDNN_OPTS"] == "1")


def test_a_function_can_be_made_of_a_graph_definition() -> None:
    """Else no rewritten step can be made: `emission/function.py` puts it in the place of the traced one."""
    assert issubclass(tf_private.FuncGraph, tf.Graph)
    step = tf.function(lambda x: x + 1.0).get_concrete_function(tf.TensorSpec((2,)))
    assert isinstance(step, tf_private.ConcreteFunction)
    assert isinstance(step.graph, tf_private.FuncGraph)
    with tf.Graph().as_default():
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=(5,))
        placeholder = tf.compat.v1.placeholder(tf.resource)
        tf_private.copy_handle_data(handle, placeholder)
        data = tf_private.get_resource_handle_data(placeholder)
    assert [[dim.size for dim in each.shape.dim] for each in data.shape_and_type] == [[5]]


def test_a_model_is_called_as_its_training_step_calls_it(model: keras.Model) -> None:
    """Else the rewritten step would leave out dropout, or pass `training` to a model that does not take it."""
    assert keras_private.is_trainer(model)
    assert not keras_private.is_trainer(model.layers[0])
    keras.utils.set_random_seed(0)
    assert (keras_private.call_in_training(model, np.ones((64, 4), "float32")).numpy() == 0).any()


def test_methods_of_keras_and_of_others_are_told_apart(model: keras.Model) -> None:
    class Own(keras.Model):
        def compute_loss(self, *args: object, **kwargs: object) -> object:
            return super().compute_loss(*args, **kwargs)

    names = ("train_step", "compute_loss", "compute_metrics", "call")
    assert all(keras_private.is_keras_method(model, name) for name in names)
    own = Own(model.inputs, model.outputs)
    assert [keras_private.is_keras_method(own, name) for name in names] == [True, False, True, True]
    model.train_step = model.train_step
    assert not keras_private.is_keras_method(model, "train_step")


def test_the_training_loss_has_the_regularization(model: keras.Model) -> None:
    """Else gradients of regularized weights would be wrong."""
    zeros = np.zeros((2, 3), "float32")
    keras_private.build_from_batch(model, (np.ones((2, 4), "float32"), zeros))
    model(np.ones((2, 4), "float32"), training=True)
    loss = float(keras_private.compute_training_loss(model, None, zeros, tf.zeros((2, 3)), None))
    assert loss == pytest.approx(0.01 * float(tf.reduce_sum(model.layers[0].kernel ** 2)), rel=1e-5)


def test_a_batch_builds_all_that_training_needs(model: keras.Model) -> None:
    """Else the first step would make variables within the rewritten graph."""
    keras_private.build_from_batch(model, (np.ones((2, 4), "float32"), np.ones((2, 3), "float32")))
    assert model.optimizer.built
    keras_private.track_loss(model, tf.constant(3.0), tf.constant(2))
    assert float(model.metrics[0].result()) == 3.0


def test_layers_loss_and_inputs_of_a_model_are_told(model: keras.Model) -> None:
    """Else a model that changed after planning, or whose inputs are nested, is taken for another."""
    assert {"Dense", "Dropout"} <= {type(layer).__name__ for layer in keras_private.list_layers(model)}
    assert keras_private.get_compiled_loss(model) is not None
    assert [tensor.shape for tensor in keras.tree.flatten(keras_private.get_input_structure(model))] == [(None, 4)]
    assert keras_private.get_input_structure(keras.Model()) is None


def test_a_step_is_wrapped_as_fit_wraps_it(model: keras.Model) -> None:
    """Else the installed step would not be what `fit` runs."""
    wrapped = keras_private.make_training_function(model, lambda batch: {"rows": tf.shape(batch)[0]})
    assert int(wrapped(iter([tf.ones((5, 4))]))["rows"]) == 5


def test_masks_ride_on_tensors() -> None:
    """Else masked metrics would count padding."""
    tensor = tf.ones((2, 3))
    keras_private.set_keras_mask(tensor, tf.constant([True, False]))
    assert keras_private.get_keras_mask(tensor) is not None
    assert keras_private.infer_predictions(keras.Sequential([layers.Dense(7)]), keras.KerasTensor((None, 4))).shape == (
        None,
        7,
    )


def test_an_operation_need_not_know_of_remat_scopes() -> None:
    """Else a model that adds two tensors cannot be planned with Keras 3.10 to 3.14, where only layers know."""
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layers.Dense(3)(inputs + inputs))
    addition = next(one for one in model.operations if not isinstance(one, layers.Layer))
    vars(addition).pop("_remat_mode", None)
    assert not keras_private.list_remat_modes(model)
    with keras_private.call_without_remat(model):
        assert not hasattr(addition, "_remat_mode")


def test_a_trace_is_forgotten_and_has_its_gradients_until_then() -> None:
    """Else each plan keeps the graph that it was made from for good."""

    @tf.custom_gradient
    def double(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return 2.0 * x, lambda upstream: 3.0 * upstream

    variable = tf.Variable(1.0)
    registered = set(tf_private.ops.gradient_registry.list())
    function = tf_private.trace(tf.function(lambda x: double(x * variable)), [tf.TensorSpec(())])
    with tf.GradientTape() as tape:
        result = function(tf.constant(5.0))
    assert tape.gradient(result, variable).numpy() == 15
    graph = weakref.ref(function.graph)
    del function, result, tape
    gc.collect()
    assert graph() is None
    assert set(tf_private.ops.gradient_registry.list()) <= registered


def test_the_stages_of_a_pipeline_are_listed() -> None:
    """Else elements of a shuffle buffer would be taken for batches that are made ready."""
    dataset = tf.data.Dataset.range(8).map(lambda row: tf.fill([4], row)).shuffle(5).batch(2).prefetch(1)
    stages = list(tf_private.list_dataset_stages(iter(dataset)))
    assert [stage.num_shuffled for stage in stages if stage.num_shuffled] == [5]
    assert next(stage for stage in stages if stage.num_shuffled).element_spec == tf.TensorSpec((4,), tf.int64)
    assert not list(tf_private.list_dataset_stages(iter([1, 2])))


def test_the_operation_that_ties_values_under_xla_is_registered() -> None:
    """Else no step that XLA compiles can be written."""
    assert tf_private.find_op_definition(tf_private.XLA_BARRIER_TYPE) is not None


def test_a_compiled_module_has_instructions_buffers_and_types() -> None:
    """Else what XLA stores, and the peak of a step that it compiles, are not known."""
    step = tf.function(lambda x: tf.matmul(x, x), jit_compile=True)
    module = tf_private.HloProto.FromString(
        step.experimental_get_compiler_ir(tf.ones((8, 8)))(stage="optimized_hlo_proto_serialized")
    )
    instructions = [one for computation in module.hlo_module.computations for one in computation.instructions]
    assert all(isinstance(one, tf_private.HloInstructionProto) for one in instructions)
    assert any(one.shape.element_type == tf_private.PrimitiveType.Value("F32") for one in instructions)
    traces = module.buffer_assignment.heap_simulator_traces
    assert all(isinstance(trace, tf_private.HeapSimulatorTrace) for trace in traces)
    assert module.buffer_assignment.buffer_allocations


def test_a_tensor_is_annotated_with_the_memory_that_xla_puts_it_in() -> None:
    """Else nothing is offloaded in plans for a GPU that is not here."""
    step = tf.function(lambda x: tf_private.place_in_memory(x, "pinned_host"), jit_compile=True)
    text = step.experimental_get_compiler_ir(tf.TensorSpec((8,)))(stage="hlo")
    assert 'custom_call_target="annotate_device_placement"' in text
    assert '_xla_buffer_placement="pinned_host"' in text


def test_a_barrier_stays_in_a_lowered_module() -> None:
    """Else XLA:GPU would hold two tensors for each ReLU of a convolution."""
    step = tf.function(tf_private.make_barrier, jit_compile=True)
    assert "opt-barrier" in step.experimental_get_compiler_ir(tf.TensorSpec((8,)))(stage="hlo")


def test_a_lowered_module_says_which_arguments_are_written_over() -> None:
    """Else weights count twice in steps that are compiled for a GPU that is not here."""
    variable = tf.Variable(tf.ones(8))
    step = tf.function(lambda x: variable.assign_add(x), jit_compile=True)
    lower = step.experimental_get_compiler_ir(tf.ones(8))
    module = tf_private.HloModuleProto.FromString(lower(stage="hlo_serialized"))
    assert [entry.parameter_number for entry in module.input_output_alias.entries] == [1]


@pytest.mark.parametrize(
    ("module", "missing", "message"),
    [
        ("tf_private", "tensorflow.python.ops.handle_data_util", "TensorFlow .* pip install 'tensorflow>="),
        ("keras_private", "keras.src.backend.tensorflow.trainer", "Keras .* pip install 'keras>="),
    ],
)
def test_a_version_that_lacks_a_name_is_named(
    module: str, missing: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, f"checkmate_tf.{module}", raising=False)
    with pytest.raises(errors.CheckmateError, match=message):
        importlib.import_module(f"checkmate_tf.{module}")
