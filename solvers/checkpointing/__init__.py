"""Methods that retain checkpoints and recompute the rest: Chen, articulation points, linearized, and Griewank.

Start reading at `policy`, which all of them share.
"""
