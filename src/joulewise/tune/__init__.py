"""Tuning: the loops that choose settings for a running job, guard the bound they promised, and prove the saving."""
