"""From a traced TensorFlow function to a training graph: which operations there are, what they do with memory and
state, and which of them run as one node.

Imports the core and TensorFlow. Start reading at `extraction.extract`.
"""
