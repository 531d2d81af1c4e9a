"""The numbers that steer the search for an order of least peak, and the trade-off behind each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Steers the search for an order.

    Args:
        widths: downsets kept at each level, one number for each beam search in turn. Wide searches find better orders
            and prove more, in time that grows with the width.
        wider_ratio: expected number of downsets that a wider search examines, relative to the one before.
        better_share: share of the time limit. Once an order is better than the input order, a still better one has to
            be found within it.
        max_flows: number of nodes whose minimum cut is computed for the lower bound. More may raise it.
        flow_arc_s: time that a minimum cut may take for each arc of its network, in seconds. A cut cannot be
            interrupted, so none begins that may end too late. Less begins more of them near the end of the time.
    """

    widths: tuple[int, ...] = (16, 128, 1024, 8192, 65536)
    wider_ratio: int = 8
    better_share: float = 0.5
    max_flows: int = 400
    flow_arc_s: float = 5e-5


SETTINGS = Settings()
