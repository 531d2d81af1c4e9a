"""(9) in CVXPY, written to be read beside the paper, for the tests: slow, and for small graphs.

Checkmate, sections 4.3 to 4.8, equation by equation, with a value in place of a node in S and FREE, workspace, graph
outputs and nodes that are not recomputable. FREE stays on the diagonal, where 4.8 eliminates it: of a node's several
values one may be of no use. In-place outputs are left out.
"""

import math

import cvxpy as cp

from checkmate_tf.errors import SolverError
from checkmate_tf.graph import Graph


def reference_optimum(graph: Graph, budget_bytes: int) -> int | None:
    """The least cost within the budget in Checkmate's stages, None when there is none.

    Raises SolverError for a graph with in-place nodes.
    """
    if any(node.inplace for node in graph.nodes):
        raise SolverError("the reference does not model in-place outputs; use CheckmateMilp")
    num_nodes, num_values = len(graph.nodes), len(graph.values)
    recompute = cp.Variable((num_nodes, num_nodes), boolean=True)
    retain = cp.Variable((num_nodes + 1, num_values), boolean=True)
    limits = [cp.diag(recompute) == 1]  # (8a)
    limits += [recompute[t, t + 1 :] == 0 for t in range(num_nodes - 1)]  # (8c)
    for value, producer in enumerate(graph.producer):
        limits.append(retain[: producer + 1, value] == 0)  # (8b)
        for t in range(num_nodes):
            limits.append(retain[t + 1, value] <= retain[t, value] + recompute[t, producer])  # (1c)
            for user in graph.users[value]:
                limits.append(recompute[t, user] <= recompute[t, producer] + retain[t, value])  # (1b)
    limits += [retain[num_nodes, value] == 1 for value in graph.outputs]
    once = [k for k, node in enumerate(graph.nodes[:-1]) if not node.recomputable]
    limits += [recompute[k + 1 :, k] == 0 for k in once]
    for t in range(num_nodes):
        limits += _memory(graph, budget_bytes, t, recompute, retain)
    problem = cp.Problem(cp.Minimize(graph.costs @ cp.sum(recompute, axis=0)), limits)  # (1a)
    problem.solve(solver=cp.SCIPY, scipy_options={"mip_rel_gap": 0.0})
    return None if problem.status == cp.INFEASIBLE else math.floor(problem.value + 0.5)


def _memory(
    graph: Graph, budget_bytes: int, t: int, recompute: cp.Variable, retain: cp.Variable
) -> list[cp.Constraint]:
    """(2) to (7) and U <= budget, in stage t."""
    limits: list[cp.Constraint] = []
    sizes = graph.sizes_bytes
    usage = graph.resident_bytes + retain[t] @ sizes  # (2)
    for k, node in enumerate(graph.nodes):
        made = int(sizes[list(node.outputs)].sum())
        usage = usage + made * recompute[t, k]  # (3)
        limits.append(usage + node.workspace_bytes * recompute[t, k] <= budget_bytes)
        for value in (*node.inputs, *node.outputs):
            free = cp.Variable(boolean=True)
            later = [recompute[t, user] for user in graph.users[value] if user > k]
            hazards = (1 - recompute[t, k]) + retain[t + 1, value] + sum(later)
            most = 2 + len(later)
            limits += [1 - free <= hazards, most * (1 - free) >= hazards]  # (7b), (7c)
            usage = usage - int(sizes[value]) * free  # (4)
    return limits
