"""What a user's training calls: `rematerialize`, `restore` and `rewrite_function`, and the step that they install.

Wires all other rooms together. Start reading at `rematerialize.rematerialize`.
"""
