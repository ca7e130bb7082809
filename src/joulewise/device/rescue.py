"""Giving back what dead processes owe on one GPU, by its file: for guardians, 'joulewise restore' and the next lease.

Whoever does it needs to know nothing: the file says what was there and where clocks belong. Doing it twice does
nothing the second time.
"""

from __future__ import annotations

from pathlib import Path

from joulewise.core.errors import JoulewiseError, LeaseTaken
from joulewise.core.knob import DEFAULT, Setting
from joulewise.device import locks
from joulewise.device.controls import Controls
from joulewise.device.keeper import Keeper
from joulewise.device.lease import Ending, Restored
from joulewise.device.saved import Saved


def rescue(
    state: Path, uuid: str, *, baseline: Setting = DEFAULT, controls: Controls | None = None
) -> tuple[Restored, ...]:
    """Give back what is owed on ``uuid``, each knob as well as it can be; empty if nothing is.

    What fails is FAILED and stays owed, also if the GPU cannot be had at all. ``baseline`` is the site's of today,
    where it is known; ``controls`` the GPU, if it is open already. Raises LeaseTaken while a live process has the
    file or the GPU, which gives back by itself, and NotSaved if ``state`` cannot be read.
    """
    saved = Saved.open(state, uuid)
    try:
        if not saved.entries and not saved.standing and not saved.unknown:
            return ()
        if folder := locks.folder() if controls is None else controls.locks:
            saved.lock_gpu(folder)
        return Keeper(controls or _open(uuid), saved, baseline=baseline).replay()
    except LeaseTaken:
        raise
    except JoulewiseError as error:
        return _out_of_reach(saved, str(error))
    finally:
        saved.close()


def _open(uuid: str) -> Controls:
    from joulewise.device.nvml_controls import NvmlControls  # it loads NVML, which most rescues have no need for

    return NvmlControls(uuid)


def _out_of_reach(saved: Saved, why: str) -> tuple[Restored, ...]:
    if saved.unknown:
        return (Restored(saved.uuid, "*", Ending.FAILED, None, None, None, f"{why}; {saved.unknown}"),)
    if not saved.entries:
        return tuple(
            Restored(saved.uuid, knob, Ending.FAILED, None, None, None, f"it is to stand at {mhz:g} MHz; {why}")
            for knob, mhz in saved.standing.items()
        )
    return tuple(
        Restored(saved.uuid, each.knob, Ending.FAILED, each.before, each.wrote[-1] if each.wrote else None, None, why)
        for each in saved.entries.values()
    )
