"""Checkmate: the mixed-integer program of (9), its relaxation and rounding. Start reading at `milp`."""
