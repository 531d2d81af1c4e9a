"""Published graphs are read in both forms in which they come."""

from experiments.published_graphs import convert


def test_checkmates_graphs_have_costs_sizes_and_a_topological_order():
    published = {
        "graph": {"name": "net"},
        "nodes": [
            {"name": "gradient", "backward": True, "cost_cpu": 5, "cost_ram": 7, "id": 0},
            {"name": "layer", "backward": False, "cost_cpu": 2, "cost_ram": 3, "id": 1},
        ],
        "links": [{"source": 1, "target": 0}],
    }
    graph = convert(published, "net-b1")
    assert [(node.name, node.inputs, node.cost, node.is_backward) for node in graph.nodes] == [
        ("n1:layer", (), 2, False),
        ("n0:gradient", (0,), 5, True),
    ]
    assert [value.size_bytes for value in graph.values] == [3, 7]


def test_random_layered_graphs_keep_the_order_that_they_were_published_with():
    published = {
        "graph": {"name": "random", "order": [2, 0, 1]},
        "nodes": [
            {"name": number, "duration": number, "out_cost": 10 + number, "param_cost": 0} for number in range(3)
        ],
        "links": [{"0": 0, "1": 1}, {"0": 2, "1": 1}],
    }
    graph = convert(published, "rl")
    assert [node.cost for node in graph.nodes] == [2, 0, 1]
    assert [node.inputs for node in graph.nodes] == [(), (), (0, 1)]
    assert [value.size_bytes for value in graph.values] == [12, 10, 11]
