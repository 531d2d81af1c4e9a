"""Bounds and schedules from stages joined into blocks: a smaller program, whose optimum bounds the whole one's.

It starts from annealing. Start reading at `solver`, then `model`.
"""
