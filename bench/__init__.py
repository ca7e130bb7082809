"""One question a file. ``python -m bench.NAME --json`` ends with one object ``{"figures": {...}}``."""

import os

# Before numpy is imported: threads that spin on small matrices cost more than they gain, here as in ``joulewise run``.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
