"""numpy loaded so that its linear algebra keeps to one thread, as is right for whoever runs beside somebody's job.

Its library takes a thread a core, and threads that wait for the next product spin: on a busy machine they make our
small matrices several times slower, and take the cores from the job that is to be measured. How many there are is read
from the environment once, when numpy is loaded.
"""

from __future__ import annotations

import importlib
import os

_THREADS = "OPENBLAS_NUM_THREADS"


def load_numpy() -> None:
    """Load numpy with one thread; afterwards the environment, which a command inherits, is as it was.

    Where numpy is loaded already nothing happens, and its threads stay.
    """
    before = os.environ.get(_THREADS)
    os.environ[_THREADS] = "1"
    try:
        importlib.import_module("numpy")
    finally:
        if before is None:
            del os.environ[_THREADS]
        else:
            os.environ[_THREADS] = before
