"""Tracing makes a training graph of a traced TensorFlow function: it finds the operations, what they do with memory and
state, and which of them run as one node.

Imports the core and TensorFlow. Start reading at `extraction.extract`.
"""
