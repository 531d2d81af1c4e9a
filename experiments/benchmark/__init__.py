"""An open benchmark of rematerialization: docs/BENCHMARK.md says what it is and how to enter it.

`instances` makes the graphs and their manifest, `scoring` says what a schedule is worth, `results` keeps what is known.
"""
