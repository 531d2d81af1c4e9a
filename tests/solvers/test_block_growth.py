"""Where blocks are cut, and the memory rows that solutions violate."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.simulator import simulate_stock
from checkmate_tf.solvers import solve
from checkmate_tf.solvers.exhaustive import Exhaustive
from checkmate_tf.solvers.relaxation import growth as block_growth
from checkmate_tf.solvers.relaxation.cuts import BoundedBlocks, add_path_cuts
from checkmate_tf.solvers.relaxation.growth import cut_blocks, find_overshot_starts, join_blocks
from checkmate_tf.solvers.relaxation.memory import overfull_events
from checkmate_tf.solvers.relaxation.model import BlockModel, Blocks, Reach
from checkmate_tf.solvers.relaxation.rows import build_block_model
from tests.graphs import training_chain
from tests.solvers.test_block_relaxation import any_blocks, tight_cases


@settings(deadline=None, max_examples=60)
@given(tight_cases(), st.booleans())
def test_blocks_grow_as_long_as_the_linear_bound_rises(case, everywhere):
    graph, budget = case
    reach, tried = Reach.of(graph), []

    def strengthen(blocks: Blocks) -> BoundedBlocks:
        tried.append(add_path_cuts(graph, budget, blocks, reach))
        return tried[-1]

    blocks = Blocks((0, len(graph.nodes) - 1), inner=frozenset(range(len(graph.nodes))))
    best = cut_blocks(
        strengthen, blocks, budget_bytes=budget, known_cost=graph.baseline_cost, max_steps=30, everywhere=everywhere
    )
    assert best.bound == max(found.bound for found in tried)
    for before, after in pairwise(tried):
        assert set(before.blocks.starts) <= set(after.blocks.starts)
        assert before.blocks.starts != after.blocks.starts or after.blocks.rows & {*before.overfull}
    wanted = best.blocks.starts[1:2]
    few = join_blocks(strengthen, best, 0.9 * best.bound, wanted=wanted, has_time=lambda: True)
    assert {*wanted} <= set(few.blocks.starts) <= set(best.blocks.starts)
    assert few.bound >= min(best.bound, 0.9 * best.bound)
    oracle = solve(graph, budget, solver=Exhaustive(stages=True))
    if oracle.simulation is not None:
        assert best.bound <= oracle.simulation.cost - graph.baseline_cost + 1e-3


def test_growing_keeps_the_rows_that_matter_and_the_places_that_help():
    """Four steps of a made-up relaxation: what its blocks were each time."""
    memory_bytes = np.full(20, 50.0)
    bounds = iter([10.0, 20.0, 21.0, 40.0, 41.0])
    tried = []

    def strengthen(blocks: Blocks) -> BoundedBlocks:
        tried.append(blocks)
        memory_bytes[len(tried)] = 200.0 - len(tried)  # after the starts that there are
        return BoundedBlocks(
            blocks,
            next(bounds),
            memory_bytes=memory_bytes.copy(),
            overfull=((5, 1), (5, 2)) if len(tried) == 1 else (),
            worth_of_row={row: float(row != (5, 2)) for row in blocks.rows} if len(tried) != 3 else {},
        )

    places = iter([[11], [12], [13]])
    best = cut_blocks(
        strengthen, Blocks((0, 5, 6), rows=frozenset({(5, 3)})), budget_bytes=100, known_cost=1e3, max_steps=4,
        find_overshot=lambda _: next(places),
    )  # fmt: skip
    assert best.bound == 41.0
    assert [sorted(blocks.rows) for blocks in tried] == [
        [(5, 3)],
        [(5, 1), (5, 2), (5, 3)],
        [(5, 1), (5, 3)],  # the other had no worth
        [(5, 3)],  # asked for from the first
        [(5, 3)],
    ]
    # Short of memory, overshot, then short of memory as that raised the bound by 10 and not by 1, and again, by 19.
    added = [set(after.starts) - set(before.starts) for before, after in pairwise(tried)]
    assert added == [{2}, {11}, {3}, {4}]


def test_blocks_joined_lose_the_rows_of_single_stages():
    blocks = Blocks((0, 4, 5, 7, 8), rows=frozenset({(4, 1), (7, 2), (7, 3)}))
    assert blocks.without([8]) == Blocks((0, 4, 5, 7), rows=frozenset({(4, 1)}))
    assert blocks.without([4]).rows == {(7, 2), (7, 3)}
    assert blocks.with_starts([2, 5]).starts == (0, 2, 4, 5, 7, 8)


@settings(deadline=None, max_examples=100)
@given(tight_cases(), st.data())
def test_events_are_overfull_where_their_rows_are_violated(case, data):
    graph, budget = case
    graph = replace(graph, nodes=tuple(replace(node, inplace=False) for node in graph.nodes))
    num_nodes, reach = len(graph.nodes), Reach.of(graph)
    starts = data.draw(any_blocks(graph)).starts
    model = build_block_model(graph, budget, Blocks(starts), reach)
    point = np.random.default_rng(data.draw(st.integers(0, 2**31))).random(model.num_columns)
    overfull = overfull_events(model, graph, budget, reach, point)
    assert set(overfull) <= {(stage, node) for stage in starts for node in range(stage)}
    for (block, node), column in model.recompute.items():
        event = (starts[block], node)
        if model.blocks.is_single(event[0], num_nodes) and node < event[0] and point[column] > 0.06:
            with_row = build_block_model(graph, budget, Blocks(starts, rows=frozenset({event})), reach)
            fixed = {with_row.recompute[key]: point[column] for key, column in model.recompute.items()}
            fixed |= {with_row.retain[key]: point[column] for key, column in model.retain.items()}
            excess_bytes = _excess_bytes(with_row, fixed, event)
            assert excess_bytes > 0 if event in overfull else excess_bytes <= 0.0011 * budget


def _excess_bytes(model: BlockModel, fixed: dict[int, float], event: tuple[int, int]) -> float:
    """By how much the row of an event is violated, where it is in the model, with these columns fixed."""
    if event not in model.event_row:
        return 0.0
    point = np.zeros(model.num_columns)
    point[list(fixed)] = list(fixed.values())
    for column, derived in model.derived.items():
        point[column] = point[list(derived.any_of)].max()
    rows, row = model.rows, model.event_row[event]
    inside = slice(rows.start[row], rows.start[row + 1])
    return float(rows.coefficient[inside] @ point[rows.column[inside]] - rows.upper[row])


def test_overshot_starts_are_around_the_worst_computation(monkeypatch):
    plain = training_chain(12)
    large = replace(plain.nodes[1], workspace_bytes=1000)
    graph = replace(plain, nodes=(plain.nodes[0], large, *plain.nodes[2:]))
    budget = simulate_stock(graph).peak_bytes - 1
    bounded = add_path_cuts(graph, budget, Blocks((0, 20)), Reach.of(graph))
    assert find_overshot_starts(bounded, graph, graph, budget) == [2]
    monkeypatch.setattr(block_growth, "expand", lambda *_: {(15, 1)})  # where more is held than in stage 1
    assert find_overshot_starts(bounded, graph, graph, budget) == [15, 16]
    assert find_overshot_starts(bounded, graph, graph, 10**6) == []


@settings(deadline=None, max_examples=60)
@given(tight_cases(), st.data())
def test_overshot_starts_are_new(case, data):
    graph, budget = case
    blocks, reach = data.draw(any_blocks(graph)), Reach.of(graph)
    bounded = add_path_cuts(graph, budget, blocks, reach)
    starts = find_overshot_starts(bounded, graph, graph, budget)
    assert len(starts) <= 2
    assert not set(starts) & {*blocks.starts, len(graph.nodes)}
    if len(blocks.starts) == len(graph.nodes):
        assert not starts
