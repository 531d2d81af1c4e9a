"""Runs a training step, here or in a process of its own, and tells what the allocator says of it.

Imports tracing, emission and profiling. Start reading at `measured_steps.run_steps`.
"""
