"""Runs of a training step, here or in a process of its own, and what the allocator says of them.

Imports tracing, emission and profiling. Start reading at `runs.run_steps`.
"""
