"""Mixed-integer programs and the libraries that solve them.

Knows no graph and no schedule.
"""
