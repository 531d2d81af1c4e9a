"""Finds the nodes of a graph that a user selects to keep or to recompute, by patterns of names or by functions."""

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from checkmate_tf.arguments import check_list
from checkmate_tf.constraints import ConstrainedGraph, Constraints, constrain, explain_fixed, find_forward
from checkmate_tf.errors import PatternError, quote
from checkmate_tf.graph import Graph, Node
from checkmate_tf.origins import Origins, guess_origins

Kind = Literal["keep", "recompute"]

_MOST_NAMED = 3
_PRODUCTS = re.compile("Conv|MatMul|Einsum")


@dataclass(frozen=True)
class InnerResults:
    """The results that layers compute for themselves: all that no other layer of the forward pass reads.

    Args:
        name: its name in messages.
        layers: names of layers. They include the layers inside them.
        larger_than: limits it to layers that yield more elements than this.
        after_products: limits it to nodes after the last convolution or matrix product of the layer: its activation.
    """

    name: str
    layers: frozenset[str]
    larger_than: int = 0
    after_products: bool = False

    def find(self, graph: Graph, origins: Origins) -> frozenset[int]:
        """Returns the nodes of the forward pass that yield such results and can be recomputed."""
        found: set[int] = set()
        paths = [set(origin.layer.split("/")) for origin in origins.nodes]
        for layer in sorted(self.layers):
            own = [n for n in find_forward(graph) if layer in paths[n]]
            found.update(self._find_inner(graph, origins, frozenset(own)))
        return frozenset(number for number in found if explain_fixed(graph, number) is None)

    def _find_inner(self, graph: Graph, origins: Origins, own: frozenset[int]) -> set[int]:
        forward = find_forward(graph)
        exits = {n for n in own if any(user in forward and user not in own for user in graph.successors[n])}
        shapes = (origins.values[value].shape or () for number in exits for value in graph.nodes[number].outputs)
        if max(map(math.prod, shapes), default=0) <= self.larger_than:
            return set()
        before: set[int] = set()
        for number in sorted(own, reverse=True) if self.after_products else ():
            is_product = _PRODUCTS.search(graph.nodes[number].op_type) is not None
            if is_product or not before.isdisjoint(graph.successors[number]):
                before.add(number)
        return set(own) - exits - before


_Named = str | Callable[[Node], Any]
Pattern = _Named | InnerResults


@dataclass(frozen=True)
class Steering:
    """One pattern, and the nodes of a graph that it constrains.

    Args:
        pattern: the pattern as it was given, in words.
        nodes: the nodes that it constrains.
        num_fixed: the number of further nodes that it matches and that cannot be recomputed.
    """

    kind: Kind
    pattern: str
    nodes: frozenset[int]
    num_fixed: int = 0

    @property
    def constraints(self) -> Constraints:
        """Returns the pattern as constraints on the graph."""
        return Constraints(**{self.kind: self.nodes})

    def __str__(self) -> str:
        return f"{self.kind} {self.pattern!r}"


def check_patterns(patterns: Any, place: str) -> tuple[Pattern, ...]:
    """Returns patterns as a tuple. Raises PatternError for anything other than texts and functions."""
    check_list(patterns, place)
    for pattern in patterns:
        if (
            not callable(pattern)
            and not isinstance(pattern, InnerResults)
            and not (isinstance(pattern, str) and pattern)
        ):
            raise PatternError(
                f'{place} has {quote(pattern)}; it must be of patterns such as "*attention*", or functions of a node'
            )
    return tuple(patterns)


def steer(graph: Graph, origins: Origins, *, keep: Sequence[Pattern], recompute: Sequence[Pattern]) -> list[Steering]:
    """Returns the nodes that each pattern constrains.

    A pattern matches the path of a node's layer, the name of its operation, or the path of the layer followed by the
    last part of that name or by the type of one of its operations. `keep` matches nodes of both passes, and `recompute`
    those of the forward pass.

    Nodes to keep are left out of `InnerResults`. Raises PatternError if another pattern constrains nothing, or if one
    node is both to be kept and to be recomputed.

    >>> from checkmate_tf.graph import Value
    >>> from checkmate_tf.origins import guess_origins
    >>> forward = Node("encoder/dense/Relu", "Relu", (), (0,), cost=2)
    >>> backward = Node("gradient_tape/encoder/dense/ReluGrad", "ReluGrad", (0,), (1,), cost=3, is_backward=True)
    >>> graph = Graph((forward, backward), (Value("y", 400), Value("dx", 400)), outputs=(1,))
    >>> [sorted(one.nodes) for one in steer(graph, guess_origins(graph), keep=["*dense"], recompute=[])]
    [[0, 1]]
    """
    found = [_match(graph, origins, "keep", one) for one in keep if not isinstance(one, InnerResults)]
    found += [_match(graph, origins, "recompute", one) for one in recompute if not isinstance(one, InnerResults)]
    kept = [one for one in found if one.kind == "keep"]
    for again in (one for one in found if one.kind == "recompute"):
        for other in kept:
            both = sorted(again.nodes & other.nodes)
            if both:
                name = graph.nodes[both[0]].name
                raise PatternError(f"{other} and {again} both match node {name}: make one narrower")
    inner = (
        Steering("recompute", one.name, one.find(graph, origins).difference(*(other.nodes for other in kept)))
        for one in recompute
        if isinstance(one, InnerResults)
    )
    return found + [one for one in inner if one.nodes]


def constrain_by_patterns(graph: Graph, *, keep: Sequence[Pattern], recompute: Sequence[Pattern]) -> ConstrainedGraph:
    """Constrains a graph without a table of layers, by the names of its nodes.

    Raises PatternError as `steer` does, and for values that are not patterns.
    """
    keep, recompute = check_patterns(keep, "keep"), check_patterns(recompute, "recompute")
    return constrain(graph, combine(steer(graph, guess_origins(graph), keep=keep, recompute=recompute)))


def combine(steering: Iterable[Steering]) -> Constraints:
    """Returns the constraints of several patterns as one."""
    found = list(steering)
    keep, recompute = ([one.nodes for one in found if one.kind == kind] for kind in ("keep", "recompute"))
    return Constraints(frozenset().union(*keep), frozenset().union(*recompute))


def _match(graph: Graph, origins: Origins, kind: Kind, pattern: _Named) -> Steering:
    text = pattern if isinstance(pattern, str) else getattr(pattern, "__qualname__", repr(pattern))
    matched = [number for number in range(len(graph.nodes)) if _matches(graph, origins, number, pattern)]
    if not matched:
        raise PatternError(
            f"{kind} {text!r} matches no layer and no operation of {graph.name!r}. {_hint(graph, origins, pattern)}"
        )
    if kind == "keep":
        return Steering(kind, text, frozenset(matched))
    forward = [number for number in matched if not graph.nodes[number].is_backward]
    reasons = {number: explain_fixed(graph, number) for number in forward}
    nodes = frozenset(number for number, reason in reasons.items() if reason is None)
    if not nodes:
        number = (forward or matched)[0]
        why = explain_fixed(graph, number)
        raise PatternError(
            f"{kind} {text!r} matches nothing that can be recomputed: of {graph.nodes[number].name}, {why}"
        )
    return Steering(kind, text, nodes, len(forward) - len(nodes))


def _matches(graph: Graph, origins: Origins, number: int, pattern: _Named) -> bool:
    if not isinstance(pattern, str):
        return bool(pattern(graph.nodes[number]))
    return any(fnmatchcase(name, pattern) for name in _list_names(graph, origins, number))


def _list_names(graph: Graph, origins: Origins, number: int) -> Iterator[str]:
    node, layer = graph.nodes[number], origins.nodes[number].layer
    yield node.name
    if layer:
        yield layer
        yield from (f"{layer}/{last}" for last in (node.name.rpartition("/")[2], *node.op_type.split("+")))


def _hint(graph: Graph, origins: Origins, pattern: Pattern) -> str:
    layers = dict.fromkeys(origin.layer for origin in origins.nodes if origin.layer)
    names = [*layers, *(node.name for node in graph.nodes)]
    if not isinstance(pattern, str):
        return f"It is called with each node, such as that of {graph.nodes[0].name}"
    plain = pattern.strip("*?/")
    close = difflib.get_close_matches(plain, names, _MOST_NAMED, 0.5)
    if not close:  # the pattern may be part of a path
        parts = dict.fromkeys(part for name in names for part in name.split("/"))
        close = difflib.get_close_matches(plain.rpartition("/")[2].strip("*?"), parts, _MOST_NAMED, 0.5)
    if close:
        return f"Close to it: {', '.join(close)}"
    return f"The layers are {', '.join(list(layers or names)[:_MOST_NAMED])} and so on"
