"""How XLA is made to keep to a schedule: ties, and the policy that says what waits for what.

XLA orders operations by their data alone, so that waiting is data too (`ties`). `gradient_ties` is the ordering policy;
the rules for what else waits are objects of the backend, which look at the `progress` of writing.
"""
