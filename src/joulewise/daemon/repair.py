"""Giving back what is owed without a daemon: for ``joulewise restore``, a Slurm epilog, a unit's ExecStopPost.

Everything that a dead process owed lies in the files of the state folder. A file that a live process holds is that
process's business: it gives back by itself, and is left alone here. Doing it twice does nothing the second time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from joulewise.core.errors import LeaseTaken, NotSaved
from joulewise.daemon.policy import Policy
from joulewise.device.lease import Ending, Restored
from joulewise.device.rescue import rescue
from joulewise.device.saved import Saved


def repair(
    state: Path,
    *,
    gpus: Collection[str] | None = None,
    policy: Policy | None = None,
    on_held: Callable[[str, str], None] | None = None,
) -> list[Restored]:
    """Give back what is owed on ``gpus`` (None: all that have a file in ``state``), each as well as it can be.

    ``on_held`` is told (GPU, who) for each that a live process holds. What fails is reported as FAILED and stays owed.
    Clocks go to the baseline of ``policy``; without one, to what was declared when they were taken.
    Raises NotSaved if ``state`` cannot be read at all; a folder that is not there owes nothing.
    """
    rules = policy or Policy()
    found: list[Restored] = []
    for uuid in Saved.known(state):
        if gpus is not None and uuid not in gpus:
            continue
        try:
            found += rescue(state, uuid, baseline=rules.baseline(uuid))
        except LeaseTaken as error:
            if on_held is not None:
                on_held(uuid, str(error))
        except NotSaved as error:
            found.append(Restored(uuid, "*", Ending.FAILED, None, None, None, str(error)))
    return found
