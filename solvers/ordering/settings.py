"""The numbers that steer the search for an order of least peak, and what each of them trades."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """How the search for an order proceeds.

    Args:
        widths: downsets kept at each level, by one beam search after the other. Wide ones find better orders and prove
            more, in time that grows with the width.
        wider_ratio: a wider search is expected to look at so many times the downsets of the one before.
        better_share: of the time limit, in which a still better order has to be found once there is one that is better
            than the input order.
        max_flows: nodes whose minimum cut is computed for the lower bound. More may raise it.
        flow_arc_s: that a minimum cut may take for each arc of its network, in seconds. Nothing ends one that
            has begun, so none begins that may end too late. Less begins more of them near the end of the time.
    """

    widths: tuple[int, ...] = (16, 128, 1024, 8192, 65536)
    wider_ratio: int = 8
    better_share: float = 0.5
    max_flows: int = 400
    flow_arc_s: float = 5e-5


SETTINGS = Settings()
