"""Draws of R and S together are told apart by Checkmate's (1b) and (1c)."""

import numpy as np

from checkmate_tf.schedule import Schedule, to_stages
from experiments.checkmate.naive_rounding import find_correct
from tests.graphs import graph_of


def test_a_schedules_r_and_s_are_correct_and_less_of_either_is_not():
    graph = graph_of({"a": "", "b": "a", "c": "b", "d": "ac"})
    stages = to_stages(graph, Schedule((0, 1, 2, 0, 3)))
    retain = np.vstack([stages.retain, np.zeros((1, 4), dtype=bool)])
    unread, unretained, unkept = stages.recompute.copy(), retain.copy(), retain.copy()
    unread[3, 0] = False  # d reads a, which is neither computed nor retained: (1b)
    unretained[3, 2] = False  # the same of c
    unkept[3, 0] = True  # a is retained into stage 3, though neither retained into stage 2 nor computed there: (1c)
    recompute = np.stack([stages.recompute, unread, stages.recompute, stages.recompute])
    assert find_correct(graph, recompute, np.stack([retain, retain, unretained, unkept])).tolist() == [
        True,
        False,
        False,
        False,
    ]
