"""Makes what people look at: tables of solutions, and pictures of schedules and trade-offs.

Imports the core and solvers. Start reading at `tables`.
"""
