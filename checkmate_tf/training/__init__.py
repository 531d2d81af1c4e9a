"""A user's training calls `rematerialize`, `restore` and `rewrite_function` here; this room has them and the step that
they install.

Wires all other rooms together. Start reading at `rematerialize.rematerialize`.
"""
