"""Contains `rematerialize`, `restore` and `rewrite_function`, which users call, and the step that they install.

Uses the rooms from `tracing` to `planning`. Start reading at `rematerialize.rematerialize`.
"""
