"""Checkmate: its mixed-integer program (9), the linear relaxation of it, and rounding. Start reading at `milp`."""
