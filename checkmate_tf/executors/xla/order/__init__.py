"""Makes XLA follow a schedule, by ties: data through which an operation waits for another.

XLA orders operations by their data alone. `ties` writes ties, and `gradient_ties` is the ordering policy. The backend's
rules add further waits, for which they read the `progress` of writing.
"""
