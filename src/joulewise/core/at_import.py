"""One of our functions called in a command that knows nothing of us, as soon as it has imported a certain module.

A directory that Python searches first holds a ``sitecustomize`` which steps aside for the user's own, waits for the
module and hands it to the function. Nothing is installed and no file of the user's is touched. A command that is not
Python, or a Python that ignores its environment (``-I``, ``-E``, ``-S``), runs as ever.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

ENVIRONMENT = "JOULEWISE_AT_IMPORT"
"""What waits for what: ``module=package.module:function``, with blanks between several."""
SITE = Path(__file__).with_name("at_import_site")


def environment(environ: Mapping[str, str], module: str, call: str) -> dict[str, str]:
    """``environ`` in which every Python process calls ``call`` (``"package.module:function"``) with ``module``.

    For several, of the same module or of others, ask several times; those of one module are called in that order. The
    function must not raise: what it raises is lost. It runs in the command's Python, which may be older than ours.
    """
    path = environ.get("PYTHONPATH")
    calls = dict.fromkeys((*environ.get(ENVIRONMENT, "").split(), f"{module}={call}"))
    return {
        **environ,
        "PYTHONPATH": f"{SITE}{os.pathsep}{path}" if path else str(SITE),
        ENVIRONMENT: " ".join(calls),
    }
