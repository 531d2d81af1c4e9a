"""Steps that XLA compiles for a CPU do not offload."""

from dataclasses import replace

import pytest

from checkmate_tf.errors import EmissionError
from checkmate_tf.executors.xla.backends import CPU
from checkmate_tf.executors.xla.model.graph import make_xla_graph
from checkmate_tf.executors.xla.writer import emit_for_xla
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import make_retain_all_schedule
from checkmate_tf.tracing.extraction import extract
from experiments.training_steps import trace
from tests.training_steps import conv_chain


def test_a_schedule_that_fetches_is_refused():
    model = conv_chain(num_layers=3, size=8)
    xla_graph = make_xla_graph(extract(trace(model, batch_size=2)), (), CPU)
    graph = xla_graph.graph
    values = tuple(replace(value, offload_cost=1, fetch_cost=1) for value in graph.values)
    xla_graph = replace(xla_graph, graph=replace(graph, values=values))
    value, readers = max(enumerate(graph.users), key=lambda item: max(item[1], default=0) - graph.producer[item[0]])
    schedule = replace(make_retain_all_schedule(graph), fetches=((max(readers), value),))
    assert isinstance(schedule, Schedule)
    with pytest.raises(EmissionError, match="for a CPU do not offload"):
        emit_for_xla(xla_graph, schedule)
