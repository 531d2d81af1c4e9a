"""The mutations: what each changes, why a test must catch it, and the tests that are run to see whether one does."""

from tests.mutations.listed_solvers import SOLVER_MUTATIONS
from tests.mutations.mutation import Mutation

_SIMULATOR = ("tests/test_simulator.py", "tests/executors/emission/test_offloading.py")
# All but those that start a process of their own or draw many examples.
_EMISSION = (
    "tests/executors/graph/test_needed_waits.py",
    "tests/executors/emission/test_offloading.py",
    *(
        f"tests/executors/graph/test_emission.py::test_{name}"
        for name in (
            "identity_schedule_is_the_stock_step",
            "memory_is_what_the_simulator_says",
            "steps_run_side_by_side_where_memory_allows",
            "control_edges_and_data_order_what_memory_asks",
            "copies_are_reported_and_named",
            "runs_nested_in_a_function_and_keeps_signature",
            "state_is_updated_exactly_once",
            "unusual_ops_survive",
            "invalid_schedule_is_an_error",
            "what_writes_over_an_input_waits_for_the_views_of_it",
            "a_wait_breaks_no_fusion",
            "a_bias_and_its_filter_wait_for_their_gradient_together",
            "layers_that_share_a_gradient_read_it_each_through_a_view_of_its_own",
            "operations_that_wait_for_each_other_are_named",
            "what_reads_a_repeat_through_a_view_reads_the_repeat",
            "of_operations_in_a_line_only_the_first_waits",
        )
    ),
)
_LOOPS = ("tests/tracing/test_loops.py",)


def _simulator(old: str, new: str, why: str) -> Mutation:
    return Mutation("checkmate_tf/simulator.py", old, new, why, _SIMULATOR)


def _emission(file: str, old: str, new: str, why: str, tests: tuple[str, ...] = _EMISSION) -> Mutation:
    return Mutation(f"checkmate_tf/executors/{file}.py", old, new, why, tests)


def _xla(file: str, old: str, new: str, why: str, test: str) -> Mutation:
    return Mutation(
        f"checkmate_tf/executors/xla/{file}.py",
        old,
        new,
        why,
        (f"tests/executors/xla/test_predicted_peaks.py::test_{test}",),
    )


MUTATIONS: tuple[Mutation, ...] = (
    _simulator(
        "np.subtract.at(change, intervals.end + 1, size)",
        "np.subtract.at(change, intervals.end, size)",
        "a value would not count at the position that reads it last",
    ),
    _simulator(
        "memory = graph.resident_bytes + np.cumsum(",
        "memory = np.cumsum(",
        "parameters and the batch would not count",
    ),
    _simulator(
        "np.cumsum(change[:-1]) + graph.arrays.workspace_bytes[order]",
        "np.cumsum(change[:-1])",
        "scratch memory would not count",
    ),
    _simulator(
        "    memory -= _count_taken_over_bytes(graph, order, intervals, schedule)\n",
        "",
        "an in-place node would count its storage twice",
    ),
    _simulator(
        "graph.sizes_bytes[intervals.value] == takes_over_bytes)",
        "graph.sizes_bytes[intervals.value] >= takes_over_bytes)",
        "storage of another size would be taken over",
    ),
    _simulator(
        "dies = read_at_end & ~(graph.arrays.is_output[intervals.value] & (intervals.end == len(order) - 1))",
        "dies = read_at_end",
        "the storage of a result of the step would be taken over",
    ),
    _simulator(
        "(intervals.end > intervals.start) | intervals.fetched",
        "intervals.end > intervals.start",
        "what is fetched for a position would not be written over there",
    ),
    _simulator(
        "saved[intervals.end[taken]] = graph.sizes_bytes[intervals.value[taken]]",
        "np.add.at(saved, intervals.end[taken], graph.sizes_bytes[intervals.value[taken]])",
        "one output would take over the storage of two inputs",
    ),
    _simulator(
        "now = max([now, *(out_end[value] for value in frees.get(position, ()))])",
        "now = now + 0",
        "memory would be counted as free before its value is copied out",
    ),
    _simulator(
        "start = max(now, lane_back, out_end[value])",
        "start = max(now, out_end[value])",
        "two values would be copied back at the same time at the full rate",
    ),
    _simulator(
        "if others[position] < begin:",
        "if others[position] <= begin:",
        "storage would be taken over while another node may still read it",
    ),
    _simulator(
        "while begin < position and together > peak_bytes:",
        "while begin < position and together >= peak_bytes:",
        "nodes would wait though memory does not ask for it",
    ),
    _simulator(
        "end[taken[one_a_position]] -= 1",
        "end[taken] -= 1",
        "the storage of two inputs would be taken over by one output",
    ),
    _simulator(
        "return held - taken_over + arrays.workspace_bytes",
        "return held + arrays.workspace_bytes",
        "a budget that works would be called impossible",
    ),
    _emission(
        "graph/writer",
        "        copies.name_of.update(fresh)\n",
        "        copies.name_of.update({} if is_repeat else fresh)\n",
        "what reads a repeat would read the first computation, which then is held",
    ),
    _emission(
        "emission/writer",
        'unique = f"{source_name}#{repeat}" if repeat else ""',
        'unique = ""',
        "grappler would merge copies with their originals",
    ),
    _emission(
        "emission/writer",
        "waits = [copies.name_control(other, fresh) for other in copies.ops.controls[op]]",
        "waits: list[str] = []",
        "variables would be read before or after the assignment that the model means",
        ("tests/executors/graph/test_emission.py::test_random_programs_under_random_schedules",),
    ),
    _emission(
        "graph/writer",
        "return delay_changes(training_graph.graph, drop_unread(training_graph.graph, schedule), awaited)",
        "return drop_unread(training_graph.graph, schedule)",
        "a loop computed again after an update would read the new values of variables",
        ("tests/executors/emission/test_awaited_calls.py",),
    ),
    _emission(
        "graph/writer",
        "ControlEdges(copies, schedule.order, begins)",
        'ControlEdges(copies, schedule.order, find_begins(training_graph, schedule, "chain"))',
        "no two nodes would run side by side",
    ),
    _emission(
        "xla/writer",
        "    if schedule.fetches and not xla_graph.backend.has_host_memory:\n",
        "    if False:\n",
        "a schedule with fetches would be emitted without them, and pass its budget",
        ("tests/executors/xla/test_offloading.py",),
    ),
    _emission(
        "graph/writer",
        "    _check_acyclic(graph_def)\n",
        "",
        "operations that wait for each other would be TensorFlow's error, or none, instead of ours",
    ),
    _emission(
        "emission/copies",
        "return self._views[op, inputs]",
        "return next(name for (viewed, _), name in self._views.items() if viewed == op)",
        "a view of a repeat would be that of the first computation",
    ),
    _emission(
        "emission/copies",
        'definition.attr["parallel_iterations"].i = 1',
        "pass",
        "what a loop holds would differ from run to run",
        _LOOPS,
    ),
    _emission(
        "emission/copies",
        'return f"{name}/output_{position}:0" if is_constant and position else f"{name}:{position}"',
        'return f"{name}:0" if is_constant else f"{name}:{position}"',
        "the second of two known shapes would be read as the first",
    ),
    _emission(
        "graph/control_edges",
        "return self._write_end(begin) if must_wait or self.num_begun[node] > 1 else []",
        "return self._write_end(begin) if must_wait and self.num_begun[node] == 1 else []",
        "repeats would run as soon as their inputs are there",
    ),
    _emission(
        "graph/control_edges",
        "(last[reader] + 1 for reader in readers.get(node, ()) if reader in last)",
        "(last[reader] for reader in readers.get(node, ()) if reader in last)",
        "a variable's new value would be written beside a node that reads its old one",
        ("tests/training/test_promise.py::test_an_update_waits_for_all_that_reads_the_old_value",),
    ),
    _emission(
        "graph/control_edges",
        "positions = range(self.ended, end)",
        "positions = range(self.ended + 1, end)",
        "one position of those to wait for would be left out",
    ),
    _emission(
        "graph/control_edges",
        '"Conv2DBackpropFilter": 2}',
        '"Conv2DBackpropFilter": 0}',
        "a filter's gradient would not be fused with its bias's, which rounds differently",
    ),
    _emission(
        "graph/control_edges",
        "in _GRADIENT_INPUT for reader in readers) > 2",
        "in _GRADIENT_INPUT for reader in readers) > 2000",
        "oneDNN would fuse gradients of two layers, and what runs between would wait for itself",
    ),
    _emission(
        "graph/needed_waits",
        "for at in range(known, begin) if",
        "for at in range(known + 1, begin) if",
        "a position would be taken to wait for one that it does not wait for",
    ),
    _emission(
        "graph/node_ends",
        "                if not before:\n",
        "                if member in large:\n",
        "operations in the middle of a node would wait, which breaks fusions",
    ),
    Mutation(
        "checkmate_tf/rewriting/body.py",
        "graph.control_outputs = list(imported[len(outputs) :])",
        "graph.control_outputs = []",
        "state that no result needs would not be updated",
        _EMISSION,
    ),
    _xla(
        "rules/sources_wait",
        "progress.find_newest_float(progress.computed_at) if is_source else None",
        "None",
        "the random numbers of all layers would be drawn at the start of the step, and held",
        "random_numbers_wait_for_their_layer",
    ),
    _xla(
        "rules/weights_written_over",
        "            if awaited:\n",
        "            if not awaited:\n",
        "all weights would be copied at the start of the step",
        "weights_are_written_over_in_place",
    ),
    _xla(
        "rules/late_reads",
        "        if not gradients:\n",
        "        if False:\n",
        "the loss would be computed after gradients of weights, and the logits held for it",
        "logits_that_another_loss_reads_count",
    ),
    _xla(
        "model/caller",
        "return int(facts.graph.sizes_bytes[value]) if _is_passing(facts, value) else 0",
        "return 0",
        "logits would not count where the loss reads them",
        "logits_that_another_loss_reads_count",
    ),
    Mutation(
        "checkmate_tf/executors/xla/rules/transposes.py",
        "enumerate(graph.producer)",
        "enumerate(())",
        "keys and values would be held once more, transposed, for the backward pass",
        ("tests/executors/xla/test_xla.py::test_compiled_steps_of_a_transformer_take_what_is_predicted",),
    ),
    Mutation(
        "checkmate_tf/executors/xla/rules/late_reads.py",
        "if (product, v) not in graph.transposed}",
        "}",
        "products of the backward pass would transpose keys and values in the forward pass",
        ("tests/executors/xla/test_xla.py::test_compiled_steps_of_a_transformer_take_what_is_predicted",),
    ),
    Mutation(
        "checkmate_tf/executors/xla/order/gradient_ties.py",
        "if self._is_transposed(run, tensors[position])]",
        "if False]",
        "keys and values that are computed again would be transposed in the forward pass",
        ("tests/executors/xla/test_xla.py::test_compiled_steps_of_a_transformer_take_what_is_predicted",),
    ),
    Mutation(
        "checkmate_tf/executors/xla/model/buffers.py",
        "sum(count_stacked_bytes(tensor) or 0 for tensor in tensors)",
        "0",
        "what a loop keeps of its weights would not count",
        ("tests/executors/xla/test_xla.py::test_what_a_loop_keeps_of_its_weights_counts",),
    ),
    Mutation(
        "checkmate_tf/executors/xla/model/graph.py",
        "for n in self.list_summed(known) or [known]) for known",
        "for n in [known]) for known",
        "a product that is written as one with its sum would cost as little as that at another size",
        ("tests/executors/xla/test_xla.py::test_summed_products_cost_at_another_size_what_they_cost",),
    ),
    Mutation(
        "checkmate_tf/executors/xla/backends.py",
        ", SliceGradients())",
        ")",
        "the gradient of each slice would be padded to the size of the whole",
        ("tests/executors/xla/test_xla.py::test_gradients_of_slices_are_put_together",),
    ),
    Mutation(
        "checkmate_tf/executors/xla/model/buffers.py",
        "return False if any(is_last) else None",
        "return None",
        "results that XLA writes beside what they are of would count as written over it",
        ("tests/executors/xla/test_xla.py::test_what_xla_does_not_write_over_is_held_beside_the_result",),
    ),
    Mutation(
        "checkmate_tf/executors/xla/order/late_runs.py",
        " or (node < newest and graph.nodes[node].recomputable)",
        "",
        "a node that a schedule only delays would run as soon as it can",
        ("tests/executors/xla/test_xla.py::test_a_node_that_a_schedule_only_delays_waits",),
    ),
    Mutation(
        "checkmate_tf/executors/xla/rules/crowded_runs.py",
        "is_crowded = progress.is_convolutional",
        "is_crowded = False",
        "what is computed again for one gradient would run at once",
        ("tests/executors/xla/test_xla.py::test_what_is_computed_again_for_one_gradient_does_not_run_at_once",),
    ),
    Mutation(
        "checkmate_tf/executors/xla/rules/late_reads.py",
        "progress.xla_graph.is_split(index)",
        "progress.xla_graph.nodes[index] in progress.xla_graph.apart",
        "padded activations would be held from the forward pass on",
        ("tests/executors/xla/test_xla.py::test_what_is_computed_again_for_one_gradient_does_not_run_at_once",),
    ),
    Mutation(
        "checkmate_tf/executors/xla/writer.py",
        "if not self.policy.run and any(",
        "if any(",
        "slices that are computed again would wait for themselves, a cycle",
        ("tests/executors/xla/test_xla.py::test_slices_that_are_computed_again_are_under_a_barrier_of_their_own",),
    ),
    Mutation(
        "checkmate_tf/executors/xla/order/gradient_ties.py",
        "root is not None and root[0] in run.ops for root",
        "False for root",
        "a tie would wait for what is computed of what it ties, a cycle",
        ("tests/executors/xla/test_xla.py::test_barriers_are_over_nothing_that_is_computed_of_what_they_yield",),
    ),
    _xla(
        "backends",
        "        HeldResults(),\n",
        "",
        "the random numbers of a mask would be held for the backward pass instead of the mask",
        "masks_are_kept_instead_of_random_numbers",
    ),
    _xla(
        "model/fusion",
        "if node in facts.constants or node in facts.lowered.products",
        "if node in facts.lowered.products",
        "what XLA computes while it compiles would count, and be computed again",
        "constants_are_not_counted",
    ),
    _xla(
        "rules/operands_apart",
        "                apart.add(xla_graph.nodes[index])\n",
        "",
        "filter gradients would compute what they transpose while they do, which takes several times as long",
        "filter_gradients_transpose_what_is_computed_already",
    ),
    _xla(
        "backends",
        " SummedProducts(),",
        "",
        "a product for each sequence would be held, and then summed",
        "gradients_of_weights_that_a_sequence_reads_are_one_product",
    ),
    _xla(
        "order/results",
        'operands = weights if "Conv" in node.op_type else weights + _list_computed(progress, index)',
        "operands = weights",
        "each product would copy its weights to wait",
        "products_wait_without_a_copy_of_their_weights",
    ),
    _xla(
        "backends",
        "        Volumes(),\n",
        "",
        "filter gradients of volumes would hold what their input is computed of beside it",
        "compiled_peaks_are_as_predicted",
    ),
    _xla(
        "backends",
        "        GivenImages(),\n",
        "",
        "the input would be transposed at the start, and held until the gradient of the first filter",
        "compiled_peaks_are_as_predicted",
    ),
    _xla(
        "writer",
        "late = read if read.fetches else delay_repeats(graph, read)",
        "late = read",
        "XLA would compute again before the loss what only the backward pass reads",
        "what_is_computed_again_waits_until_it_is_read",
    ),
    Mutation(
        "checkmate_tf/executors/xla/delays.py",
        "if simulation.peak_bytes <= peak_bytes and simulation.memory_bytes.sum() < held_bytes:",
        "if simulation.peak_bytes <= peak_bytes:",
        "what a repeat reads would be held until its reader, though it may be larger",
        ("tests/executors/xla/test_delays.py::test_a_repeat_stays_where_waiting_would_hold_more",),
    ),
    _xla(
        "order/progress",
        "return max(floats, key=self.copies.size_bytes) if",
        "return floats[0] if",
        "what waits for a filter's gradient would wait for that of the bias alone, from the same step",
        "gradients_of_filters_are_waited_for",
    ),
    _xla(
        "rules/losses_over_logits",
        "largest = tf.maximum(tf.reduce_max(logits, 1, keepdims=True), at_label)",
        "largest = tf.reduce_max(logits, 1, keepdims=True)",
        "the logits would be held beside their exponentials, for the loss",
        "the_gradient_of_a_loss_is_written_over_its_logits",
    ),
    _xla(
        "rules/losses_over_logits",
        "tf.where(hold_each(labels), ",
        "tf.where(hold_always(labels), ",
        "the exponentials would be of another shape than the logits, and not be written over them",
        "the_gradient_of_a_loss_is_written_over_its_logits",
    ),
    Mutation(
        "checkmate_tf/executors/xla/model/graph.py",
        "(buffers.materialized | buffers.awaited)",
        "buffers.materialized",
        "the operands of a gradient would be held for the readers that wait for it",
        ("tests/executors/xla/rules/test_awaited_gradients.py::test_large_gradients_lie_in_buffers",),
    ),
    _xla(
        "rules/gradient_forms",
        "        if producer in buffers.awaited:\n",
        "        if False:\n",
        "a gradient would count once more for a sum of it",
        "what_products_of_matrices_read_lies_in_one_form",
    ),
    _xla(
        "rules/held_results",
        "late |= index.written[value]",
        "pass",
        "a ReLU that a product reads for the gradient of a filter would be held beside what it is of",
        "what_products_of_matrices_read_lies_in_one_form",
    ),
    _xla(
        "model/buffers",
        "return own_bytes + sum(",
        "return own_bytes + 0 * sum(",
        "a tensor that a metric makes of the logits would not count",
        "what_a_metric_makes_of_logits_counts",
    ),
    Mutation(
        "checkmate_tf/planning/search.py",
        "for _ in range(self.settings.least_rounds if",
        "for _ in range(0 if",
        "a refusal would name what the schedule of least memory takes, where others take less",
        (
            "tests/planning/test_planning.py"
            "::test_the_least_budget_that_is_named_is_not_that_of_the_least_memory_predicted",
        ),
    ),
    _xla(
        "model/graph",
        "given_bytes + held_bytes",
        "given_bytes",
        "the zeros of an optimizer, held from the start, would not count",
        "zeros_to_which_an_optimizer_adds_gradients_count",
    ),
    Mutation(
        "checkmate_tf/executors/xla/rules/losses_over_logits.py",
        "- (at_label - largest) + invalid",
        "- (at_label - largest)",
        "the loss of a class that there is not would be a number",
        ("tests/executors/xla/test_xla.py::test_a_loss_that_is_written_over_its_logits_gives_the_same",),
    ),
    _xla(
        "backends",
        "        SegmentSums(),\n",
        "",
        "the zeros of all sums by segments would be held from the start of the step",
        "compiled_peaks_are_as_predicted",
    ),
    _xla(
        "order/ties",
        "return x / tf.where(",
        "return x + 0 * tf.where(",
        "what reads a result would compute it again, from more than it is",
        "compiled_peaks_are_as_predicted",
    ),
    _xla(
        "model/buffers",
        "self.facts.lowered.late or self._is_loop(node)",
        "self.facts.lowered.late",
        "the zeros that a loop begins with would count beside its results",
        "a_loop_writes_its_results_over_the_zeros_that_it_begins_with",
    ),
    Mutation(
        "checkmate_tf/executors/xla/order/gradient_ties.py",
        "if copies.ops.ops[op].type in WHILE_TYPES:",
        "if False:",
        "the lists that loops fill would be held from the start of the step",
        ("tests/executors/xla/test_xla.py::test_recurrent_layers_are_computed_again",),
    ),
    Mutation(
        "checkmate_tf/executors/xla/order/gradient_ties.py",
        "return progress.find_newest_float(progress.computed_at)",
        "return None",
        "repeats of loops would not wait for the backward pass",
        ("tests/executors/xla/test_xla.py::test_recurrent_layers_are_computed_again",),
    ),
    Mutation(
        "checkmate_tf/tracing/ops.py",
        "(not _reads_open_shape(op), index)",
        "(True, index)",
        "activations would be held until the gradient reads their open shapes",
        ("tests/tracing/test_observed.py::test_activations_are_not_held_until_the_gradient_reads_their_open_shapes",),
    ),
    Mutation(
        "checkmate_tf/tracing/ops.py",
        '("Const", "EmptyTensorList", *SHAPE_TYPES)',
        '("Const", "EmptyTensorList")',
        "nodes of the forward pass that read open shapes would count as backward",
        ("tests/tracing/test_observed.py::test_activations_are_not_held_until_the_gradient_reads_their_open_shapes",),
    ),
    *SOLVER_MUTATIONS,
)
