"""What was measured or estimated for layers is what the nodes of the layer graphs cost."""

import pytest

from experiments.checkmate import h100_costs
from experiments.checkmate.budget_curves import FIGURE_5
from experiments.checkmate.profiled_costs import COSTS, profiled_graph
from experiments.running import CHECKMATE, read_points


@pytest.mark.parametrize("part", [COSTS, h100_costs.COSTS])
@pytest.mark.parametrize("model", FIGURE_5)
def test_no_time_is_lost(model: str, part: str) -> None:
    (measured,) = (e["result"] for e in read_points(CHECKMATE, part) if e["point"]["model"] == model)
    graph = profiled_graph(model, part)
    sides = sum(sum(measured[side].values()) for side in ("forward", "backward"))
    assert graph.baseline_cost == measured["loss"] + sides
    convolutions = [node for node in graph.nodes if "Conv2D" in node.op_type]
    assert convolutions
    assert all(node.cost > 0 for node in convolutions)
