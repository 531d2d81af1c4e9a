"""Lists the operations of a traced step that its results need, in a stable topological order."""

import heapq
from dataclasses import dataclass

import tensorflow as tf

from checkmate_tf.errors import UnsupportedModelError
from checkmate_tf.tracing.loops import count_list_bytes
from checkmate_tf.tracing.semantics import SHAPE_TYPES, count_static_bytes, has_static_shape_value

# A tensor is output number `output` of operation number `op`.
TensorId = tuple[int, int]

_GRADIENT_SCOPES = ("gradient_tape/", "gradients/")
_LOOP_TYPES = frozenset({"Enter", "Exit", "LoopCond", "Merge", "NextIteration", "RefEnter", "RefMerge", "Switch"})


@dataclass(frozen=True)
class OpList:
    """The facts about a step's operations that grouping needs, by index. All tuples are [num_ops].

    Args:
        inputs: the tensors that each op reads, in its own order.
        controls: the further ops for which each op must wait.
        sizes_bytes: of each output; None if neither a static shape nor the contents of a TensorList determine it.
        is_backward: whether the op is part of the gradient computation, or depends on it.
        outputs: the tensors that the step returns.
        control_outputs: ops that must run although no returned tensor needs them, such as assignments.
    """

    ops: tuple[tf.Operation, ...]
    inputs: tuple[tuple[TensorId, ...], ...]
    controls: tuple[tuple[int, ...], ...]
    sizes_bytes: tuple[tuple[int | None, ...], ...]
    is_backward: tuple[bool, ...]
    outputs: tuple[TensorId, ...]
    control_outputs: tuple[int, ...]

    def map_consumers(self) -> dict[TensorId, list[int]]:
        """Maps each tensor to the ops that read it, ascending."""
        consumers: dict[TensorId, list[int]] = {}
        for index, tensors in enumerate(self.inputs):
            for tensor in dict.fromkeys(tensors):
                consumers.setdefault(tensor, []).append(index)
        return consumers


def is_in_gradient(op: tf.Operation) -> bool:
    """Returns whether a `tf.GradientTape` made an operation."""
    return bool(op.name.startswith(_GRADIENT_SCOPES))


def list_ops(graph: tf.Graph) -> OpList:
    """Lists the ops that a FuncGraph's outputs and control outputs need.

    Raises UnsupportedModelError for TensorFlow 1 loops.
    """
    ops = _sort(_find_needed(graph), graph)
    index = {op.name: position for position, op in enumerate(ops)}
    inputs = tuple(
        tuple((index[t.op.name], t.value_index) for t in map(_look_behind_identities, op.inputs)) for op in ops
    )
    controls = tuple(tuple(index[c.name] for c in _list_awaited(op, graph)) for op in ops)
    return OpList(
        ops=ops,
        inputs=inputs,
        controls=controls,
        sizes_bytes=tuple(tuple(map(_count_bytes, op.outputs)) for op in ops),
        is_backward=_mark_backward(ops, inputs, controls),
        outputs=tuple((index[t.op.name], t.value_index) for t in map(_look_behind_identities, graph.outputs)),
        control_outputs=tuple(index[op.name] for op in graph.control_outputs),
    )


def _look_behind_identities(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the tensor that an IdentityN passes on, because the IdentityN waits for all its inputs.

    These may be all gradients of the step.
    """
    while tensor.op.type == "IdentityN" and not tensor.op.control_inputs:
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def _count_bytes(tensor: tf.Tensor) -> int | None:
    return count_list_bytes(tensor) if tensor.dtype == tf.variant else count_static_bytes(tensor)


def _list_awaited(op: tf.Operation, graph: tf.Graph) -> list[tf.Operation]:
    """Lists the ops for which an op must wait besides its inputs.

    `tf.function` makes the identities that it returns wait for every stateful op of the step, by way of a NoOp. These
    ops are control outputs, too, and run without the NoOp.
    """
    controls = list(op.control_inputs)
    if not controls or op.type != "Identity" or op.outputs[0].consumers():
        return controls
    if not any(op is tensor.op for tensor in graph.outputs):
        return controls
    run_anyway = {control.name for control in graph.control_outputs}
    joined = [c for control in controls for c in (control.control_inputs if control.type == "NoOp" else [control])]
    return [] if all(control.name in run_anyway for control in joined) else controls


def _find_needed(graph: tf.Graph) -> list[tf.Operation]:
    seen: dict[str, tf.Operation] = {}
    waiting = [_look_behind_identities(t).op for t in graph.outputs] + list(graph.control_outputs)
    while waiting:
        op = waiting.pop()
        if op.name in seen:
            continue
        if op.type in _LOOP_TYPES:
            raise UnsupportedModelError(
                f"operation {op.name} ({op.type}) belongs to a TensorFlow 1 loop; use tf.while_loop in TensorFlow 2"
            )
        seen[op.name] = op
        waiting.extend(_look_behind_identities(t).op for t in op.inputs)
        waiting.extend(op.control_inputs)
    return list(seen.values())


def _sort(needed: list[tf.Operation], graph: tf.Graph) -> tuple[tf.Operation, ...]:
    """Sorts operations by creation, but with inputs first, because a While with a gradient is rewritten late.

    An operation that reads an open shape comes right behind its inputs, because it holds them until it has run. Most of
    these are made with the gradient, which reads the shapes of activations.
    """
    names = {op.name for op in needed}
    created = [op for op in graph.get_operations() if op.name in names]
    position = {op.name: index for index, op in enumerate(created)}
    before = [
        {position[_look_behind_identities(t).op.name] for t in op.inputs}
        | {position[c.name] for c in op.control_inputs}
        for op in created
    ]
    after: list[list[int]] = [[] for _ in created]
    for index, sources in enumerate(before):
        for source in sources:
            after[source].append(index)
    missing = [len(sources) for sources in before]
    keys = [(not _reads_open_shape(op), index) for index, op in enumerate(created)]
    ready = [keys[index] for index, count in enumerate(missing) if count == 0]
    order = []
    while ready:
        _, index = heapq.heappop(ready)
        order.append(created[index])
        for user in after[index]:
            missing[user] -= 1
            if missing[user] == 0:
                heapq.heappush(ready, keys[user])
    if len(order) < len(created):
        raise UnsupportedModelError(
            f"{len(created) - len(order)} operations of the step wait for each other in a cycle"
        )
    return tuple(order)


def _reads_open_shape(op: tf.Operation) -> bool:
    return op.type in SHAPE_TYPES and not has_static_shape_value(op)


def _mark_backward(
    ops: tuple[tf.Operation, ...], inputs: tuple[tuple[TensorId, ...], ...], controls: tuple[tuple[int, ...], ...]
) -> tuple[bool, ...]:
    backward: list[bool] = []
    for index, op in enumerate(ops):
        # The empty lists that a loop fills for its gradient, and the shapes of activations, have the gradient's names,
        # but belong to the forward pass.
        named = is_in_gradient(op) and op.type not in ("Const", "EmptyTensorList", *SHAPE_TYPES)
        follows = any(backward[source] for source, _ in inputs[index]) or any(backward[c] for c in controls[index])
        backward.append(named or follows)
    return tuple(backward)
