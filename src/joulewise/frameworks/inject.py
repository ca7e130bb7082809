"""Hooks for a command that knows nothing of them: what its environment needs so that its Python processes mark steps.

Which of them can be reached, and what they see of it: ``core/at_import``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from joulewise.core import at_import
from joulewise.core.marks import ENVIRONMENT

# The package, not its module ``optimizer``: whatever else waits for that module has then had its turn, so that our
# hook is the last and its stamp comes after theirs.
_WANTED = "torch.optim"


def environment(environ: Mapping[str, str], directory: str | os.PathLike[str]) -> dict[str, str]:
    """``environ`` with what makes a command and all that it starts leave marks in ``directory``.

    Goes together with ``device.couple_torch.environment``, whichever comes first.
    """
    prepared = at_import.environment(environ, _WANTED, "joulewise.frameworks.iterations:follow")
    return {**prepared, ENVIRONMENT: os.fspath(directory)}
