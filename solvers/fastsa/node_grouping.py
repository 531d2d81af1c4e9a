"""Groups nodes by FastSA's Algorithm 1 (section 2.2.2, appendix C.1), and ungroups schedules."""

from dataclasses import dataclass, replace

from checkmate_tf.graph import Graph, Node
from checkmate_tf.schedule import Schedule


@dataclass(frozen=True)
class NodeGroups:
    """A graph with a node for each group; `members` lists the original nodes of each in order, [num_groups]."""

    graph: Graph
    members: tuple[tuple[int, ...], ...]


def group_nodes(graph: Graph, *, max_members: int = 64) -> NodeGroups:
    """Fuses each node whose outputs are no smaller than its inputs into all its users.

    The condition is sum s(inputs) <= sum s(outputs). A node can vanish only if it is recomputable and has users, all of
    which read all its outputs, none of which is a graph output. A group's workspace is the most that its temporary
    values and its members' workspace take beyond its inputs and outputs (B.1), with the inputs held throughout and
    nothing in place.

    This departs from the paper: groups of `max_members` nodes are fused no further. If the batch and the parameters are
    resident, the first node reads nothing. If later nodes then yield as much as they read, every node before another
    would be fused into its group, so a chain of n layers would become groups of n (n + 1) nodes in total.
    """
    members: list[set[int]] = [{index} for index in range(len(graph.nodes))]
    inputs: list[set[int]] = [set(node.inputs) for node in graph.nodes]
    readers: list[set[int]] = [set(users) for users in graph.users]
    vanished: set[int] = set()
    for index, node in enumerate(graph.nodes):
        if len(members[index]) >= max_members or not _fuses(graph, node, inputs[index], readers):
            continue
        for user in sorted(readers[node.outputs[0]]):
            members[user] |= members[index]
            inputs[user] = (inputs[user] - set(node.outputs)) | inputs[index]
            for value in inputs[index]:
                readers[value].add(user)
        for value in inputs[index]:
            readers[value].discard(index)
        vanished.add(index)
    kept = [index for index in range(len(graph.nodes)) if index not in vanished]
    return _rebuilt(graph, kept, members, inputs)


def ungroup(grouping: NodeGroups, schedule: Schedule) -> Schedule:
    """Returns a schedule of groups as a schedule of the original nodes, without fetches."""
    return Schedule(tuple(node for group in schedule.order for node in grouping.members[group]))


def _fuses(graph: Graph, node: Node, inputs: set[int], readers: list[set[int]]) -> bool:
    if not node.recomputable or not node.outputs or set(node.outputs) & set(graph.outputs):
        return False
    users = readers[node.outputs[0]]
    if not users or any(readers[value] != users for value in node.outputs):
        return False
    sizes = graph.sizes_bytes
    return sizes[list(inputs)].sum() <= sizes[list(node.outputs)].sum()


def _rebuilt(graph: Graph, kept: list[int], members: list[set[int]], inputs: list[set[int]]) -> NodeGroups:
    values = [value for index in kept for value in graph.nodes[index].outputs]
    new_index = {value: position for position, value in enumerate(sorted(values))}
    nodes = []
    for index in kept:
        node = graph.nodes[index]
        group = [graph.nodes[member] for member in sorted(members[index])]
        nodes.append(
            replace(
                node,
                inputs=tuple(sorted(new_index[value] for value in inputs[index])),
                outputs=tuple(new_index[value] for value in node.outputs),
                cost=sum(member.cost for member in group),
                workspace_bytes=_workspace_bytes(graph, group),
                recomputable=all(member.recomputable for member in group),
                inplace=node.inplace and len(group) == 1,
            )
        )
    outer = Graph(
        tuple(nodes),
        tuple(graph.values[value] for value in sorted(values)),
        tuple(sorted(new_index[value] for value in graph.outputs)),
        graph.resident_bytes,
        graph.cost_unit,
        graph.name,
        graph.source,
    )
    return NodeGroups(outer, tuple(tuple(sorted(members[index])) for index in kept))


def _workspace_bytes(graph: Graph, group: list[Node]) -> int:
    """Returns the most that is held beyond the inputs and the last member's outputs while a group runs."""
    if len(group) == 1:
        return group[0].workspace_bytes
    sizes = graph.sizes_bytes
    inner = {value for node in group[:-1] for value in node.outputs}
    last_use = {value: position for position, node in enumerate(group) for value in node.inputs if value in inner}
    held, most = 0, 0
    for position, node in enumerate(group[:-1]):
        held += sum(int(sizes[value]) for value in node.outputs)
        most = max(most, held + node.workspace_bytes)
        held -= sum(int(sizes[value]) for value in (*node.outputs, *node.inputs) if last_use.get(value, -1) == position)
        held -= sum(int(sizes[value]) for value in node.outputs if value not in last_use)
    outputs = sum(int(sizes[value]) for value in group[-1].outputs)
    return max(0, most - outputs, held + group[-1].workspace_bytes)
