"""Hooks for a command that knows nothing of them: what its environment needs so that its Python processes mark steps.

A directory that Python searches first holds a ``sitecustomize`` which waits for ``torch.optim`` and steps aside for
everything else. Nothing is installed and no file of the user's is touched. A command that is not Python, or a Python
that ignores its environment (``-I``, ``-E``, ``-S``), runs as ever and marks nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from joulewise.core.marks import ENVIRONMENT

SITE = Path(__file__).with_name("inject_site")


def environment(environ: Mapping[str, str], directory: str | os.PathLike[str]) -> dict[str, str]:
    """``environ`` with what makes a command and all that it starts leave marks in ``directory``.

    Goes together with ``device.couple_torch.environment``, whichever comes first.
    """
    path = environ.get("PYTHONPATH")
    return {
        **environ,
        "PYTHONPATH": f"{SITE}{os.pathsep}{path}" if path else str(SITE),
        ENVIRONMENT: os.fspath(directory),
    }
