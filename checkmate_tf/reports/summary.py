"""Describes the memory and the extra time of a plan in sentences and one table. `print(plan)` shows them."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tabulate import tabulate

from checkmate_tf.budget import format_bytes
from checkmate_tf.planning.loss_limit import explain_loss_limit
from checkmate_tf.planning.pattern_costs import PatternCost
from checkmate_tf.reports.records import Recomputation, list_kinds, list_offloaded, list_recomputations
from checkmate_tf.reports.view import PlanView
from checkmate_tf.solvers import Solution, Status

if TYPE_CHECKING:
    from checkmate_tf.measurement.difference import UpdateDifference

_WIDTH = 98
_MOST_RECOMPUTED = 5


def summarize(view: PlanView) -> str:
    """Returns sentences on peak and cost, a table of what is in memory at the peaks, and the costliest recomputations.

    >>> print(summarize(view))  # doctest: +ELLIPSIS
    The training step of 'chain-3' takes 3.91 KiB at its peak (predicted).
    The budget is 3.91 KiB; the stock step takes 4.88 KiB (predicted).
    1 of 7 nodes is computed again, which costs 14.3% of the stock step's time (predicted).
    Solver auto, ... s: no schedule of this peak costs less (proved, for fixed order).
    <BLANKLINE>
    in memory at the peak       stock    rematerialized
    -----------------------  --------  ----------------
    activations              3.91 KiB          2.93 KiB
    gradients                  1000 B            1000 B
    all, predicted           4.88 KiB          3.91 KiB
    <BLANKLINE>
    recomputed, the costliest first:
      f0 (forward): frees 1000 B for 14.3% of the time
    """
    lines = [*list_sentences(view), "", _tabulate_kinds(view)]
    recomputed = list_recomputations(view)
    if recomputed:
        lines += ["", "recomputed, the costliest first:"]
        lines += [_describe_recomputation(view, one) for one in recomputed[:_MOST_RECOMPUTED]]
    return "\n".join(lines)


def list_sentences(view: PlanView) -> Iterator[str]:
    """Yields the first facts for a reader: peak and budget, the stock step, the extra time, and the proof."""
    margin = f", beside a margin of {format_bytes(view.margin_bytes)}" if view.margin_bytes else ""
    budget = "The" if view.budget_bytes is None else f"The budget is {format_bytes(view.budget_bytes)}{margin}; the"
    stock_bytes, peak_bytes = view.measured or view.predicted
    how = view.how if view.measured else "predicted"
    yield f"The training step of {view.name!r} takes {format_bytes(peak_bytes)} at its peak ({how})."
    stock_how = "predicted" if stock_bytes == view.predicted[0] else how
    yield f"{budget} stock step takes {format_bytes(stock_bytes)} ({stock_how})."
    for one in view.chunks:
        what = {"loss": "The loss is", "blocks": f"{one.num_regions:,} blocks are"}[one.what]
        yield (
            f"{what} computed in {one.num_chunks:,} chunks of {one.chunk_rows:,} rows, so that sums over rows are "
            "taken in another order."
        )
        if one.what == "blocks":
            yield "Their gradients compute each chunk again; predicted times do not include that."
    if view.difference is not None:
        share, name = view.difference
        yield (
            f"One step differs from the stock step by at most {share:.1e} of what it changes (measured, {name})."
            if share
            else "One step ends with the numbers of the stock step, up to their last bit (measured)."
        )
    yield from _describe_updates(view.updates)
    nothing = "Nothing else" if any(one.what == "blocks" for one in view.chunks) else "Nothing"
    num_again = len(set(view.schedule.order[step] for step in view.rematerialized.is_again.nonzero()[0]))
    yield from _describe_offloading(view)
    if view.schedule.fetches:
        again = f"{num_again:,} of {len(view.graph.nodes):,} nodes" if num_again else nothing
        are = "are" if num_again > 1 else "is"
        longer = format_small(view.overhead)
        yield f"{again} {are} computed again. All in all, the step takes {longer} longer (predicted)."
        yield from _describe_time(view)
        yield from (describe_pattern(one, view.overhead) for one in view.patterns)
        return
    if not num_again:
        only_waits = view.measured is not None and peak_bytes < stock_bytes
        why = ": operations only wait until the schedule has them run" if only_waits else ""
        yield f"{nothing} is computed again{why}."
        yield from (describe_pattern(one, 0.0) for one in view.patterns)
        return
    recomputation = format_small(view.overhead - view.state_share)
    yield (
        f"{num_again:,} of {len(view.graph.nodes):,} nodes {'is' if num_again == 1 else 'are'} computed again, which "
        f"costs {recomputation} of the stock step's time (predicted)."
    )
    yield from _describe_time(view)
    if view.solution is not None:
        yield _judge(view.solution)
    yield from (describe_pattern(one, view.overhead) for one in view.patterns)
    loss_limit = explain_loss_limit(view.graph, view.origins)
    if loss_limit:
        yield loss_limit


def _describe_offloading(view: PlanView) -> Iterator[str]:
    """Yields a sentence about offloaded state, and one about the offloaded values.

    If nothing is offloaded although offloading is allowed, it yields a sentence about that.
    """
    if view.offloaded_state_bytes:
        yield (
            f"{format_bytes(view.offloaded_state_bytes)} of optimizer state and frozen weights are offloaded. To read "
            f"and write them costs {format_small(view.state_share)} of the stock step's time (predicted)."
        )
    offloaded = list_offloaded(view)
    if offloaded:
        size_bytes = sum(one.size_bytes for one in offloaded)
        back_bytes = sum(one.size_bytes * one.times for one in offloaded)
        hidden = format_small(view.rematerialized.timing.hidden_share)
        back = "back" if back_bytes == size_bytes else f"{format_bytes(back_bytes)} back"
        yield (
            f"Each step copies {format_bytes(size_bytes)} of {len(offloaded):,} "
            f"value{'' if len(offloaded) == 1 else 's'} out of memory and {back}, {hidden} of it beside the "
            "computation (predicted)."
        )
    elif not view.offloaded_state_bytes and any(value.fetch_cost is not None for value in view.graph.values):
        yield "Nothing is offloaded: no schedule that copies values was found to take less time."


def _describe_time(view: PlanView) -> Iterator[str]:
    """Yields a sentence about the time of the steps in planning, if both steps were timed."""
    if view.measured_overhead is not None:
        more = "longer" if view.measured_overhead >= 0 else "less time"
        yield f"Its step took {abs(view.measured_overhead):.1%} {more} than the stock step (measured)."


def _describe_updates(updates: "Sequence[UpdateDifference]") -> Iterator[str]:
    """Yields a sentence about the weights whose updates rounding changes, and one about others whose updates differ."""
    decided = [one for one in updates if one.is_rounding]
    others = [one for one in updates if not one.is_rounding]
    if decided:
        yield (
            "The optimizer divides small gradients by their size, so rounding changes the updates of "
            f"{_count(decided)}: {_describe_update(decided[0])}. Stock training depends on rounding there, too."
        )
    if others:
        yield f"Updates of {_count(others)} differ by more than rounding explains: {_describe_update(others[0])}."


def _describe_update(one: "UpdateDifference") -> str:
    return (
        f"that of {one.name} differs from the stock step's by {one.share:.1e} of itself, and by {one.stock_share:.1e} "
        "between stock steps whose variables differ in their last bit (measured)"
    )


def _count(updates: "Sequence[UpdateDifference]") -> str:
    return "1 weight" if len(updates) == 1 else f"{len(updates):,} weights"


def describe_pattern(one: PatternCost, overhead: float) -> str:
    """Returns a sentence about the nodes that a pattern constrains and its cost, in a plan with an overhead.

    >>> from checkmate_tf.planning.pattern_costs import PatternCost
    >>> describe_pattern(PatternCost("keep", "*attention*", 24, 0, 0.02), 0.05)
    "keep '*attention*', 24 nodes: 5.0% of the time as it is, 2.0% without this pattern (predicted)."
    """
    fixed = f" ({one.num_fixed} more cannot be recomputed)" if one.num_fixed else ""
    nodes = f"{one.num_nodes} node{'' if one.num_nodes == 1 else 's'}{fixed}"
    without, with_it = format_small(one.overhead_without), format_small(overhead)
    cost = (
        "it costs nothing" if with_it == without else f"{with_it} of the time as it is, {without} without this pattern"
    )
    return f"{one.kind} {one.pattern!r}, {nodes}: {cost} (predicted)."


def _judge(solution: Solution) -> str:
    """Returns a sentence about the difference between the cost and its lower bound."""
    found = f"Solver {solution.solver}, {solution.solve_time_s:.1f} s"
    if solution.status is Status.OPTIMAL:
        return f"{found}: no schedule of this peak costs less (proved, for {solution.bound_order} order)."
    gap = solution.gap
    if gap is None:
        return f"{found}."
    order = solution.bound_order
    return f"{found}: a better schedule could save at most {format_small(gap)} of the time (bound for {order} order)."


def _tabulate_kinds(view: PlanView) -> str:
    stock, rematerialized = dict(list_kinds(view, view.stock)), dict(list_kinds(view, view.rematerialized))
    rows: list[tuple[str, ...]] = [
        (name, format_bytes(stock[name]), format_bytes(rematerialized[name]))
        for name in stock
        if stock[name] or rematerialized[name]
    ]
    if view.offloaded_state_bytes:
        rows.append(("state, now offloaded", format_bytes(view.offloaded_state_bytes), format_bytes(0)))
    rows.append(("all, predicted", *map(format_bytes, view.predicted)))
    if view.measured:
        rows.append((f"all, {view.how}", *map(format_bytes, view.measured)))
    headers = ("in memory at the peak", "stock", "rematerialized")
    return tabulate(
        rows, headers=headers, tablefmt="simple", disable_numparse=True, colalign=("left", "right", "right")
    )


def _describe_recomputation(view: PlanView, one: Recomputation) -> str:
    times = "" if one.times == 1 else f", {one.times} times"
    share = f"{format_small(one.cost / max(view.graph.baseline_cost, 1))} of the time"
    tail = f" ({one.op}{times}): frees {format_bytes(one.freed_bytes)} for {share}"
    return f"  {shorten(one.layer or one.name, _WIDTH - 2 - len(tail))}{tail}"


def format_small(share: float) -> str:
    """Writes a fraction of one as a percentage. A small one becomes "under 0.1%", and is not rounded to 0.

    >>> format_small(0.0426), format_small(0.0001), format_small(0.0)
    ('4.3%', 'under 0.1%', '0.0%')
    """
    return "under 0.1%" if 0 < share < 0.001 else f"{share:.1%}"


def shorten(text: str, width: int) -> str:
    """Returns a text that fits in `width` characters, without its middle if necessary.

    >>> shorten("encoder/block_0/attention/dense", 20)
    'encoder/...ion/dense'
    """
    if len(text) <= width:
        return text
    kept = max(width - 3, 2) // 2
    return f"{text[:kept]}...{text[-(width - 3 - kept) :]}" if width > 8 else text[:width]
