"""What we believe about hardware and jobs, as functions that can be fitted; no I/O."""
