"""Experiments of the FastSA paper: see experiments/README.md."""
