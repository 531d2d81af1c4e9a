"""Methods that keep checkpoints and compute the rest again: Chen, articulation points, linearized and Griewank.

Start reading at `policy`, which all of them share.
"""
