"""Who gets what: one policy a file, each a pure function ``allocate(snapshot, budget) -> Allocation``."""
