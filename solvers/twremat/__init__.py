"""TWRemat: schedules from tree and path decompositions. Start reading at `solver`."""
