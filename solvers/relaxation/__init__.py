"""Lower bounds and schedules from stages joined into blocks: a smaller program whose optimum bounds the whole one's.

Starts from annealing. Start reading at `solver`, then `model`.
"""
