"""Simulated annealing of Checkmate's stages: sets of recomputations (stage, node), changed by compiled moves.

Start reading at `solver`, then `annealer`.
"""
