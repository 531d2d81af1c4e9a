"""Runs a training step, in this process or in a separate one, and measures its peak memory and time.

Imports tracing, emission and profiling. Start reading at `measured_steps.run_steps`.
"""
