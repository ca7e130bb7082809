"""What becomes of joulewise under attack: half-open connections, damaged files of saved settings, forged savings."""
