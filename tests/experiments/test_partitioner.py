"""PyTorch's joint graphs as training graphs, where PyTorch is installed."""

import pytest

from checkmate_tf.simulator import find_peak_bound, simulate, simulate_stock

pytest.importorskip("torch", reason="PyTorch is not installed")

from experiments.peers import joint_graph
from experiments.peers.torch_models import make_step


def test_a_partition_is_a_schedule_of_the_joint_graph() -> None:
    joint = joint_graph.trace(make_step("unet"))
    stock, tight = (joint_graph.partition(joint, budget, "dp", None) for budget in (1.0, 0.2))
    peaks, kept = [], []
    for found in (stock, tight):
        converted = joint_graph.convert(joint, joint_graph.order_of(found), joint_graph.bytes_moved)
        schedule = joint_graph.schedule_of(converted, found)
        simulation = simulate(converted.graph, schedule)
        kept.append(joint_graph.saved_bytes(converted, found))
        assert joint_graph.held_bytes(converted, schedule) <= kept[-1]
        assert find_peak_bound(converted.graph).peak_bytes <= simulation.peak_bytes
        assert len(schedule.order) >= len(converted.graph.nodes)
        peaks.append(simulation.peak_bytes)
    assert peaks[0] <= simulate_stock(converted.graph).peak_bytes * 1.01
    assert peaks[1] < 0.8 * peaks[0]
    assert kept[1] < 0.5 * kept[0]
