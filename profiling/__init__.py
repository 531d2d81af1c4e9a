"""Finds costs, workspace and memory of a training graph's nodes on the device that will run them."""
