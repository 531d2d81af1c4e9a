"""Makes a training graph of a traced TensorFlow function.

Tracing finds the operations, their effects on memory and state, and which of them run as one node. Imports the core and
TensorFlow. Start reading at `extraction.extract`.
"""
