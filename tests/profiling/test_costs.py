"""Cost models, scaling over batch sizes, and the pool: expected numbers are worked out by hand."""

import json
from dataclasses import replace

import pytest
import tensorflow as tf

from checkmate_tf.errors import ProfileError
from checkmate_tf.profiling.cache import DeviceKey, Measurement, ProfileCache
from checkmate_tf.profiling.costs import (
    DeviceCosts,
    NodeCosts,
    cost_training_graph,
    estimate_roofline_costs,
    replace_costs,
)
from checkmate_tf.profiling.devices import DEVICES
from checkmate_tf.profiling.pool import Request, simulate_pool_peak_bytes
from checkmate_tf.profiling.profiler import cut_node_fragments
from checkmate_tf.profiling.roofline import Roofline
from checkmate_tf.profiling.scaling import fit_batch_scaling
from checkmate_tf.tracing.analytic_costs import count_op_flops
from checkmate_tf.tracing.extraction import extract
from tests.graphs import training_chain

MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def one_layer():
    """y = x w, [32, 16] x [16, 8], mean of squares, gradient for w."""
    weight = tf.Variable(tf.ones([16, 8]))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.linalg.matmul(x, weight)))
        return loss, tape.gradient(loss, weight)

    return extract(tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec([32, 16])))


def products(graph) -> list[int]:
    return [node for node, content in enumerate(graph.graph.nodes) if "MatMul" in content.op_type]


def test_flops_of_products_by_hand(one_layer):
    costed = cost_training_graph(one_layer, "flops")
    assert costed.graph.cost_unit == "flop"
    for node in products(one_layer):
        # 2 x 32 x 16 x 8 forward and for the weight's gradient; what shares the node adds at most 20 an element.
        assert 8192 <= costed.graph.nodes[node].cost <= 8192 + 20 * 32 * 8 * len(one_layer.get_node_ops(node))


def test_unit_costs_and_unknown_names(one_layer):
    costed = cost_training_graph(one_layer, "unit")
    assert {node.cost for node in costed.graph.nodes} == {1}
    with pytest.raises(ProfileError, match="'seconds' are unknown; use one of auto, measured, flops"):
        cost_training_graph(one_layer, "seconds")


def test_roofline_takes_the_longer_of_computing_and_moving(one_layer):
    roofline = Roofline(flops_per_ns=2.0, bytes_per_ns=4.0, dispatch_ns=10.0)
    assert roofline.estimate_cost_ns(1000, 400, 1) == 510
    assert roofline.estimate_cost_ns(100, 400, 3) == 130
    quick = replace(roofline, bytes_per_ns=1e12, dispatch_ns=0.0)
    assert all(estimate_roofline_costs(one_layer, quick, compiled=False)[node] >= 4096 for node in products(one_layer))


def test_a_compiled_node_starts_one_kernel(one_layer):
    starts = Roofline(flops_per_ns=1e12, bytes_per_ns=1e12, dispatch_ns=10.0)
    num_ops = [len(one_layer.get_node_ops(node)) for node in range(len(one_layer.graph.nodes))]
    assert max(num_ops) > 1
    assert estimate_roofline_costs(one_layer, starts, compiled=False) == [10 * number for number in num_ops]
    assert estimate_roofline_costs(one_layer, starts, compiled=True) == [10] * len(num_ops)
    alone, together = (
        cost_training_graph(one_layer, DeviceCosts("h100", compiled=compiled)).graph.nodes for compiled in (False, True)
    )
    saved = [one.cost - other.cost for one, other in zip(alone, together, strict=True)]
    assert saved == [2_000 * (number - 1) for number in num_ops]


def test_roofline_is_calibrated_once_a_device(one_layer, tmp_path):
    first = cost_training_graph(one_layer, "roofline", cache_path=tmp_path / "c")
    assert first.graph.cost_unit == "ns"
    assert all(node.cost > 0 for node in first.graph.nodes)
    second = cost_training_graph(one_layer, "roofline", cache_path=tmp_path / "c")
    assert [node.cost for node in second.graph.nodes] == [node.cost for node in first.graph.nodes]
    with ProfileCache(tmp_path / "c") as cache:
        assert sum(cache.count_by_device().values()) == 3


def test_measured_costs_fill_in_time_and_workspace(one_layer, tmp_path):
    costed = cost_training_graph(one_layer, cache_path=tmp_path / "c", progress=False)
    assert costed.graph.cost_unit == "ns"
    assert sum(node.cost for node in costed.graph.nodes) > 0
    again = cost_training_graph(one_layer, "measured", cache_path=tmp_path / "c", progress=False)
    assert again.graph == costed.graph


def test_costs_of_a_device_that_is_not_here_follow_its_makers_figures(one_layer):
    costed = cost_training_graph(one_layer, "v100")
    assert costed.graph.cost_unit == "ns"
    flops = [sum(map(count_op_flops, one_layer.get_node_ops(node))) for node in range(len(one_layer.graph.nodes))]
    for node in products(one_layer):
        described = one_layer.graph.nodes[node]
        moved = sum(one_layer.graph.values[value].size_bytes for value in (*described.inputs, *described.outputs))
        num_ops = len(one_layer.get_node_ops(node))
        expected = max(flops[node] / 15_700, moved / 900) + 2000 * num_ops
        assert costed.graph.nodes[node].cost == pytest.approx(expected, rel=0.05)
    slow, fast = (sum(n.cost for n in cost_training_graph(one_layer, name).graph.nodes) for name in ("t4", "h100"))
    assert slow > fast


def test_every_device_has_a_source():
    for figures in DEVICES.values():
        assert figures.source
        assert figures.half_tflops >= figures.product_tflops >= figures.vector_tflops


def test_costs_of_an_exported_profile(one_layer, tmp_path):
    key = DeviceKey("a graphics card", "2.21.0", "driver 2")
    signatures = {cut.signature for cut in cut_node_fragments(one_layer)}
    path = tmp_path / "profile.json"
    with ProfileCache(tmp_path / "c") as cache:
        cache.add(key, [Measurement(name, "MatMul", 77.0, 0.0, 3, None, 1.0) for name in signatures])
        path.write_text(json.dumps(cache.export()))
        costed = cost_training_graph(one_layer, str(path))
        assert {node.cost for node in costed.graph.nodes} == {77}
        cache.add(replace(key, device="another card"), [Measurement("a", "MatMul", 1.0, 0.0, 3, None, 1.0)])
        path.write_text(json.dumps(cache.export()))
    with pytest.raises(ProfileError, match="has the profiles of a graphics card, another card; keep one of them"):
        cost_training_graph(one_layer, str(path))
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"profiles": data["profiles"][1:]}))
    with pytest.raises(ProfileError, match="measure this model on that device"):
        cost_training_graph(one_layer, str(path))
    with pytest.raises(ProfileError, match="cannot read profile"):
        cost_training_graph(one_layer, str(tmp_path / "none.json"))
    path.write_text("{}")
    with pytest.raises(ProfileError, match="is not a profile in the format"):
        cost_training_graph(one_layer, str(path))


def test_costs_must_fit_the_graph():
    with pytest.raises(ProfileError, match="2 costs do not fit graph 'chain-2' of 5 nodes"):
        replace_costs(training_chain(2), NodeCosts("ns", (1, 2)))


def lines(batch_size: int, *, bend: float = 0.0):
    """Costs of 100 + 5 b and 3 b ns in turn."""
    chain = training_chain(2)
    costs = tuple(
        round((100 + 5 * batch_size if node % 2 else 3 * batch_size) + bend * batch_size**2)
        for node in range(len(chain.nodes))
    )
    return replace_costs(chain, NodeCosts("ns", costs))


def test_straight_lines_are_found_with_no_error():
    fit = fit_batch_scaling({size: lines(size) for size in (8, 16, 32)})
    assert fit.relative_error == pytest.approx(0, abs=1e-12)
    assert replace_costs(lines(1), fit.find_node_costs(64)) == lines(64)
    assert fit.fixed_ns.tolist() == pytest.approx([0, 100, 0, 100, 0])


def test_the_error_of_a_bent_curve_is_that_of_the_worst_size_left_out():
    measured = {size: lines(size, bend=0.5) for size in (8, 16, 32)}
    fit = fit_batch_scaling(measured)
    # Left out, 32 is predicted by the line through 8 and 16: 128 + 16 x 12 = 320 of 512 for the bend of each node.
    total = sum(node.cost for node in measured[32].nodes)
    assert fit.relative_error >= 5 * (512 - 320) / total - 1e-9


def test_costs_never_fall_below_zero_or_with_the_batch_size():
    falling = {
        size: replace_costs(training_chain(1), NodeCosts("ns", (100 - size, size * size, 5))) for size in (1, 5, 9)
    }
    fit = fit_batch_scaling(falling)
    assert (fit.fixed_ns >= 0).all()
    assert (fit.per_example_ns >= 0).all()


def test_too_few_sizes_and_other_units_are_refused():
    with pytest.raises(ProfileError, match="three"):
        fit_batch_scaling({8: lines(8), 16: lines(16)})
    with pytest.raises(ProfileError, match="in 'unit'"):
        fit_batch_scaling({8: lines(8), 16: lines(16), 32: training_chain(2)})


def requests(*steps: tuple[str, int | None]) -> list[Request]:
    return [Request(owner, None if size is None else size * MEBIBYTE) for owner, size in steps]


def test_a_pool_gives_a_chunk_whole_unless_it_is_twice_as_large():
    # The first region that fits 3 MiB has 4; 4 is less than twice 3, so the whole chunk is in use.
    assert simulate_pool_peak_bytes(requests(("a", 3))) == 4 * MEBIBYTE
    assert simulate_pool_peak_bytes(requests(("a", 3)), reserved_bytes=8 * MEBIBYTE) == 3 * MEBIBYTE
    # 2 of 4 is split off.
    assert simulate_pool_peak_bytes(requests(("a", 2), ("b", 2))) == 4 * MEBIBYTE


def test_neighbours_that_are_free_become_one_chunk_again():
    # One region of 4: split in 1 + 1 + 2; all given back, the 4 are there for one request.
    steps = [("x", 4), ("x", None), ("a", 1), ("b", 1), ("c", 2), ("b", None), ("a", None), ("c", None), ("d", 4)]
    assert simulate_pool_peak_bytes(requests(*steps)) == 4 * MEBIBYTE


def test_small_requests_are_left_out_and_round_to_256_bytes():
    assert simulate_pool_peak_bytes([Request("a", 100)], min_bytes=101) == 0
    assert simulate_pool_peak_bytes([Request("a", 100)]) == 256


def test_resident_tensors_decide_which_chunks_are_left():
    # 2 MiB are drawn in a region of 2; scaled and shifted in one of 4, as its halves: 2 and 2 are left, 2 resident.
    variables = [2 * MEBIBYTE]
    # The next region has 8, of which 3 are split off; an empty pool would have given 4.
    assert simulate_pool_peak_bytes(requests(("a", 3)), variables=variables) == 3 * MEBIBYTE
    # Of the 2 that are left nothing is split off for more than 1.
    assert simulate_pool_peak_bytes([Request("a", 3 * MEBIBYTE // 2)], variables=variables) == 2 * MEBIBYTE
    assert simulate_pool_peak_bytes([Request("a", MEBIBYTE)], variables=variables) == MEBIBYTE
    assert simulate_pool_peak_bytes(requests(("a", 3)), variables=[1024], min_bytes=4096) == 4 * MEBIBYTE
    # An argument of 6 takes a region of 8; 3 are split off the next 8, and 7 off 16. Without it 4 and 8 are taken.
    assert simulate_pool_peak_bytes(requests(("a", 3), ("b", 7)), arguments=[6 * MEBIBYTE]) == 10 * MEBIBYTE
    assert simulate_pool_peak_bytes(requests(("a", 3), ("b", 7))) == 12 * MEBIBYTE
