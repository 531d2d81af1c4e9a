"""`auto`: which methods to run on a graph, one after the other or in processes side by side, and the schedule of least
memory.

The only room that knows all others. Start reading at `auto`.
"""
