"""Timing and workspace of nodes on this CPU. No test asserts seconds: only order, counts and bytes."""

import mmap
import sqlite3
import weakref

import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf.profiling import timing
from checkmate_tf.profiling.cache import ProfileCache
from checkmate_tf.profiling.costs import cost_training_graph
from checkmate_tf.profiling.profiler import cut_node_fragments, measure_fragment, profile_graph
from checkmate_tf.profiling.signature import Fragment, build_graph_def, cut_fragments
from checkmate_tf.profiling.timing import RandomInputs, TimingOptions, build_fragment_function
from checkmate_tf.profiling.workspace import measure_workspace_bytes
from checkmate_tf.tf_private import has_onednn
from checkmate_tf.tracing.extraction import TrainingGraph, extract

QUICK = TimingOptions(max_time_s=0.02)


def training_graph(batch_size: int = 8, *, layers: int = 3) -> TrainingGraph:
    """A chain of equal dense layers behind an embedding: most of its nodes have few signatures."""
    table = tf.Variable(tf.random.stateless_uniform([100, 64], (1, 2)))
    weights = [tf.Variable(tf.random.stateless_uniform([64, 64], (3, i))) for i in range(layers)]

    def step(ids, target):
        with tf.GradientTape() as tape:
            x = tf.gather(table, ids)
            for weight in weights:
                x = tf.nn.relu(tf.linalg.matmul(x, weight))
            loss = tf.reduce_mean(tf.square(x - target))
        return loss, tape.gradient(loss, weights)

    specs = tf.TensorSpec([batch_size], tf.int32), tf.TensorSpec([batch_size, 64])
    return extract(tf.function(step, autograph=False).get_concrete_function(*specs), name="dense")


def fragment_of(build) -> Fragment:
    """The fragment of every operation but placeholders and constants."""
    graph = tf.Graph()
    with graph.as_default():
        build()
    ops = [op for op in graph.get_operations() if op.type not in ("Placeholder", "Const")]
    (fragment,) = cut_fragments(graph, [ops])
    assert isinstance(fragment, Fragment)
    return fragment


def test_every_signature_is_measured_once_and_the_second_time_none(tmp_path):
    graph = training_graph()
    first = profile_graph(graph, cache_path=tmp_path / "c", options=QUICK, progress=False)
    assert first.reasons == {}
    assert first.num_measured == first.num_signatures < len(graph.graph.nodes)
    second = profile_graph(training_graph(), cache_path=tmp_path / "c", progress=False)
    assert second.num_measured == 0
    assert second.measurements == first.measurements
    longer = profile_graph(training_graph(layers=6), cache_path=tmp_path / "c", options=QUICK, progress=False)
    assert longer.num_measured < longer.num_signatures
    other_batch = profile_graph(training_graph(16), cache_path=tmp_path / "c", options=QUICK, progress=False)
    assert other_batch.num_measured > 0


def test_an_interrupt_keeps_what_was_measured(tmp_path, monkeypatch):
    from checkmate_tf.profiling import profiler

    measured = []

    def interrupted_at_the_fourth(fragment, device, **options):
        if len(measured) == 3:
            raise KeyboardInterrupt
        measured.append(fragment.signature)
        return measure_fragment(fragment, device, **options)

    monkeypatch.setattr(profiler, "measure_fragment", interrupted_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        profile_graph(training_graph(), cache_path=tmp_path / "c", options=QUICK, progress=False)
    monkeypatch.undo()
    rest = profile_graph(training_graph(), cache_path=tmp_path / "c", options=QUICK, progress=False)
    assert rest.num_measured == rest.num_signatures - 3


def test_a_node_that_fails_alone_is_reported_and_the_others_are_measured(tmp_path, monkeypatch):
    from checkmate_tf.profiling import profiler

    def refuses_products(fragment, device, **options):
        if "MatMul" in fragment.op_types:
            raise tf.errors.InvalidArgumentError(None, None, "no products today")
        return measure_fragment(fragment, device, **options)

    monkeypatch.setattr(profiler, "measure_fragment", refuses_products)
    graph = training_graph()
    profile = profile_graph(graph, cache_path=tmp_path / "c", options=QUICK, progress=False)
    products = {i for i, node in enumerate(graph.graph.nodes) if "MatMul" in node.op_type}
    assert set(profile.reasons) == products
    assert all("no products today" in reason for reason in profile.reasons.values())
    with pytest.warns(RuntimeWarning, match=f"{len(products)} of {len(graph.graph.nodes)} nodes"):
        costed = cost_training_graph(graph, cache_path=tmp_path / "c", progress=False)
    assert all(costed.graph.nodes[product].cost > 0 for product in products)


def test_a_large_product_costs_more_than_a_small_one_run_in_many_copies():
    def product(size):
        return lambda: tf.linalg.matmul(*(tf.compat.v1.placeholder(tf.float32, [size, size]) for _ in range(2)))

    small, large = (measure_fragment(fragment_of(product(size)), "CPU:0") for size in (8, 800))
    # A million times the work; on a busy machine the small one may be held up in each of its repeats.
    assert large.cost_ns > small.cost_ns
    assert small.repeats >= 2


def test_all_copies_run_and_run_one_after_the_other():
    def build():
        variable = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="counter")
        tf.raw_ops.AssignAddVariableOp(resource=variable, value=tf.constant(1.0))

    graph = tf.Graph()
    with graph.as_default():
        build()
    assign = next(op for op in graph.get_operations() if op.type == "AssignAddVariableOp")
    (fragment,) = cut_fragments(graph, [[assign]])
    (counter,) = RandomInputs("CPU:0").make_arguments(fragment)
    before = tf.raw_ops.ReadVariableOp(resource=counter, dtype=tf.float32)
    build_fragment_function(fragment, "CPU:0", copies=7)(counter)
    after = tf.raw_ops.ReadVariableOp(resource=counter, dtype=tf.float32)
    assert after.numpy() - before.numpy() == pytest.approx(7)


def test_copies_of_a_fragment_with_many_heads_and_tails_wait_by_few_edges():
    """Each of 50 operations is a head and a tail: 50 x 50 waits between two copies would be too many."""
    width, copies = 50, 4
    fragment = fragment_of(lambda: [tf.sqrt(tf.compat.v1.placeholder(tf.float32, [3])) for _ in range(width)])
    assert len(fragment.heads) == len(fragment.tails) == width
    nodes = {node.name: node for node in build_graph_def(fragment, copies).node}
    waits = {name: [i[1:] for i in node.input if i.startswith("^")] for name, node in nodes.items()}
    assert sum(map(len, waits.values())) == copies * width + (copies - 1) * width
    for copy in range(1, copies):
        before = {f"c{copy - 1}n{tail}" for tail in fragment.tails}
        for head in fragment.heads:
            assert before <= {tail for join in waits[f"c{copy}n{head}"] for tail in waits[join]}
    assert set(waits["done"]) == {f"c{copies - 1}n{tail}" for tail in fragment.tails}


def test_a_fragment_computes_what_its_operations_compute():
    def build():
        x = tf.compat.v1.placeholder(tf.float32, [5, 4])
        tf.reduce_sum(tf.nn.softmax(x @ tf.compat.v1.placeholder(tf.float32, [4, 3])), axis=1)

    fragment = fragment_of(build)
    result = build_fragment_function(fragment, "CPU:0")(*RandomInputs("CPU:0").make_arguments(fragment))
    np.testing.assert_allclose(result[-1], np.ones(5), rtol=1e-6)


def test_workspace_is_what_is_held_beside_inputs_and_outputs():
    megabyte = 1 << 18

    def build():
        x = tf.compat.v1.placeholder(tf.float32, [megabyte])
        # One output of 4 bytes; a temporary of 1 MiB, exp(x), in whose buffer its square is written.
        tf.reduce_sum(tf.square(tf.exp(x)))

    measured = measure_fragment(fragment_of(build), "CPU:0", options=QUICK)
    assert measured.workspace_bytes == pytest.approx(1 << 20, rel=0.01)
    alone = fragment_of(lambda: tf.exp(tf.compat.v1.placeholder(tf.float32, [megabyte])))
    assert measure_fragment(alone, "CPU:0", options=QUICK).workspace_bytes < 1 << 12


@pytest.mark.skipif(not has_onednn(), reason="the CPU's allocator reports peaks only with oneDNN")
def test_workspace_includes_the_buffers_of_calls_that_xla_compiles():
    """Keras makes such calls for convolutions in groups, and the runtime records none of their buffers."""
    groups = 256
    convolve = tf.function(lambda x, kernel: tf.nn.conv2d(x, kernel, 1, "SAME"), jit_compile=True)

    def gradients(x, kernel):
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            total = tf.reduce_sum(convolve(x, kernel))
        return tape.gradient(total, [x, kernel])

    arguments = [tf.ones([4, 6, 6, groups]), tf.ones([3, 3, 1, groups])]
    function = tf.function(gradients, autograph=False).get_concrete_function(*arguments)
    function(*arguments)
    full_filter_bytes = 4 * 3 * 3 * groups**2  # XLA computes a gradient for each pair of channels.
    assert measure_workspace_bytes(function, arguments, "CPU:0") > full_filter_bytes


def test_random_indices_are_valid_and_differ():
    graph = training_graph()
    (gather,) = [f for f in cut_node_fragments(graph) if isinstance(f, Fragment) and "Gather" in f.op_types]
    ids = next(x for x in RandomInputs("CPU:0").make_arguments(gather) if x.dtype.is_integer)
    assert 0 <= ids.numpy().min() < ids.numpy().max() < 100
    build_fragment_function(gather, "CPU:0")(*RandomInputs("CPU:0").make_arguments(gather))


def test_measurements_survive_in_the_file_while_profiling_goes_on(tmp_path, monkeypatch):
    """Each is committed as it is made: another connection sees it before the next is measured."""
    from checkmate_tf.profiling import profiler

    seen = []

    def counting(fragment, device, **options):
        with sqlite3.connect(f"file:{tmp_path / 'c'}?mode=ro", uri=True) as reader:
            seen.append(reader.execute("SELECT COUNT(*) FROM measurements").fetchone()[0])
        return measure_fragment(fragment, device, **options)

    monkeypatch.setattr(profiler, "measure_fragment", counting)
    profile = profile_graph(training_graph(), cache_path=tmp_path / "c", options=QUICK, progress=False)
    assert seen == list(range(profile.num_signatures))
    with ProfileCache(tmp_path / "c") as cache:
        assert len(cache.load(profile.key)) == profile.num_signatures


def test_fragments_share_inputs_of_a_kind_but_no_fragment_reads_one_twice():
    def total(size):
        return lambda: tf.add_n([tf.compat.v1.placeholder(tf.float32, [size]) for _ in range(3)])

    inputs = RandomInputs("CPU:0", max_bytes=4096)
    first = inputs.make_arguments(fragment_of(total(256)))
    assert len({id(tensor) for tensor in first}) == 3
    assert [id(tensor) for tensor in inputs.make_arguments(fragment_of(total(256)))] == [id(tensor) for tensor in first]
    inputs.make_arguments(fragment_of(total(512)))  # 6 KiB: only two of these can be kept.
    assert id(inputs.make_arguments(fragment_of(total(256)))[0]) not in {id(tensor) for tensor in first}


def test_runs_with_new_pages_do_not_count(monkeypatch):
    """Their time is that of the operating system; a step that has run before brings no new page."""
    times = iter([9.0, 1.0, 9.0, 9.0, 2.0, 9.0] + [9.0] * 3)

    def seconds_of(run, device):
        seconds = next(times)
        run() if seconds == 9.0 else None
        return seconds

    def touch_pages():
        with mmap.mmap(-1, 1 << 20) as pages:
            pages.write(b"1" * (1 << 20))

    monkeypatch.setattr(timing, "_measure_s", seconds_of)
    assert timing._repeat(touch_pages, [], TimingOptions(min_repeats=6, max_time_s=0), "CPU:0") == [1.0, 2.0]
    assert timing._repeat(touch_pages, [], TimingOptions(min_repeats=3, max_time_s=0), "CPU:0") == [9.0] * 3


def test_time_spent_waiting_for_other_processes_does_not_count(monkeypatch):
    """Four seconds pass, in one of which the threads of this process run; a GPU's time is not theirs."""
    wall, cpu = iter([10.0, 14.0, 10.0, 14.0]), iter([2.0, 3.0, 2.0, 3.0])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(wall))
    monkeypatch.setattr(timing.time, "process_time", lambda: next(cpu))
    measured = [timing._measure_s(lambda: None, device) for device in ("CPU:0", "GPU:0")]
    monkeypatch.undo()
    assert measured == [1.0, 4.0]


@pytest.mark.parametrize(("device", "most"), [("CPU:0", 3), ("GPU:0", 0)])
def test_outputs_are_held_while_a_cpu_warms_up_only(device, most, monkeypatch):
    """A GPU may have no room for them beside what the next run allocates."""
    monkeypatch.setattr(timing, "_FEW_FAULTS", -1)  # no run is clean: it goes on until the time is over
    held = weakref.WeakSet()
    counts = []

    class Output:
        pass

    def run():
        counts.append(len(held))
        output = Output()
        held.add(output)
        return output

    timing.warm_up(run, 0.2, device=device)
    assert len(counts) > 5
    assert max(counts) == most
