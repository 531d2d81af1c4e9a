"""FastSA: simulated annealing of sequences, with reordering, grouping and offloading. Start reading at `solver`."""
