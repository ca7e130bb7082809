"""What is kept: the journal of what was decided and seen, and the memory of what was learnt."""
