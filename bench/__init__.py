"""One question a file. ``python -m bench.NAME --json`` ends with one object ``{"figures": {...}}``."""
