"""Node grouping: FastSA's Algorithm 1 (section 2.2.2, appendix C.1), and back."""

from dataclasses import dataclass, replace

from checkmate_tf.graph import Graph, Node
from checkmate_tf.schedule import Schedule


@dataclass(frozen=True)
class NodeGroups:
    """A graph with a node a group; `members` lists the original nodes of each, in order, [num_groups]."""

    graph: Graph
    members: tuple[tuple[int, ...], ...]


def group_nodes(graph: Graph, *, max_members: int = 64) -> NodeGroups:
    """Fuses every node that yields no less than it reads into all that read it.

    A node is fused where sum s(inputs) <= sum s(outputs) and, so that it may vanish, it is recomputable,
    has users, all of which read all its outputs, and none of these is a graph output. A group's
    workspace is the most that its temporary values and its members' workspace take beyond its inputs
    and outputs (B.1), with the inputs held throughout and nothing in place.

    Departs from the paper: groups of `max_members` nodes are fused no further. Where batch and parameters
    are resident, so that the first node reads nothing, and later ones yield as much as they read, all before
    a node would go into its group (a chain of n layers into groups of n (n + 1) nodes in all).
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
    """A schedule of groups as a schedule of the original nodes; fetches are not carried over."""
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
    """The most held beyond inputs and the last member's outputs while a group runs."""
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
