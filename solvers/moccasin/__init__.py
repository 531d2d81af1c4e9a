"""MOCCASIN: constraint programming on retention intervals. Start reading at `solver`."""
