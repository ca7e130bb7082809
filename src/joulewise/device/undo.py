"""Giving back what a lease has turned: the keeper's other half, and all that a rescuer needs.

What is owed is in ``saved``; what is there is read where it can be read. The rules are the keeper's (see there), and
nothing here ever overwrites a value that somebody else has set and that can be told from ours.
"""

from __future__ import annotations

from contextlib import suppress

from joulewise.core.errors import GpuError, JoulewiseError
from joulewise.device.controls import CLOCKS, LIMIT, Controls
from joulewise.device.lease import Ending, Restored
from joulewise.device.saved import PERSISTENCE, Entry, Memory, boot_id
from joulewise.device.standing import Standing


class Undo:
    """Gives back the knobs of one GPU."""

    def __init__(self, controls: Controls, saved: Memory, standing: Standing) -> None:
        self._controls = controls
        self._saved = saved
        self._standing = standing

    def give_back(self, entry: Entry, *, older_than_driver: bool) -> Restored:
        """One knob, as well as it can be. Never raises: what fails is FAILED and stays saved, all else is forgotten."""
        try:
            if older_than_driver and not self.written_since(entry):
                given = self._stale(entry, "the driver was started anew since")
            else:
                given = self._undo(entry)
        except JoulewiseError as error:
            return self._restored(entry, Ending.FAILED, None, str(error))
        self._saved.forget(entry.knob)
        return given

    def drop(self, entry: Entry, why: str) -> Restored:
        """An entry from before the boot. Nothing of ours is there, so a baseline that cannot be set is not owed."""
        try:
            given = self._stale(entry, why)
        except JoulewiseError as error:
            given = self._restored(entry, Ending.STALE, None, f"{why}; {error}")
        self._saved.forget(entry.knob)
        return given

    def after_corruption(self) -> list[Restored]:
        """If the memory is lost: clocks go to where they are when nobody leases them, once; the limit is owed.

        Nobody knows what the limit was, so it is left as it is until somebody says that this has been seen to. The file
        of another version, or one that is not believed, may yet tell: then nothing is touched.
        """
        if not self._saved.unknown:
            return []
        given: list[Restored] = []
        if self._saved.clocks_locked:
            given = [self._free_clock(knob) for knob in CLOCKS if knob in self._controls.space.knobs]
            if not any(each.ending is Ending.FAILED for each in given):
                self._saved.clocks_freed()
        return [*given, self._unknown_limit()]

    def written_since(self, entry: Entry) -> bool:
        """Whether the limit of an entry from before a reload is ours all the same: a fresh driver shows the default."""
        if entry.knob != LIMIT:
            return False
        found = self._controls.value(LIMIT)
        return (found in entry.wrote or entry.unsure) and found != self._controls.default_limit_w

    def _undo(self, entry: Entry) -> Restored:
        knob, before = entry.knob, entry.before
        if knob in CLOCKS:
            if not entry.wrote and not entry.unsure:
                return self._restored(entry, Ending.UNCHANGED, None)
            base = self._standing.to_base(knob)
            return self._restored(entry, self._ending(knob, base), base)
        found = self._found(knob)
        if found == before:
            return self._restored(entry, Ending.UNCHANGED, found)
        if found is None or before is None or not (found in entry.wrote or entry.unsure):
            why = f"somebody else has set {found:g}: left" if found is not None else "it cannot be read any more"
            return self._restored(entry, Ending.FOREIGN, found, why)
        # Of what is left of a damaged file no limit is foreign: what we had set last may be among what was lost.
        why = "" if found in entry.wrote else f"a part of what was saved is lost, so the {found:g} there may be ours"
        if knob == PERSISTENCE:
            self._controls.set_persistence(bool(before))
        else:
            self._controls.write(knob, before)
        after = self._found(knob)
        if after != before:
            raise GpuError(f"{self._controls.uuid} took {knob}={before:g} but shows {after}; it will be tried again")
        return self._restored(entry, Ending.RESTORED, after, why)

    def _stale(self, entry: Entry, why: str) -> Restored:
        after: float | None = None
        if entry.knob in CLOCKS:
            after = self._standing.base(entry.knob)
            # A lock cannot be read: unless the machine was booted, it may have been written since.
            if after is not None or ((entry.wrote or entry.unsure) and entry.boot == boot_id()):
                self._standing.to_base(entry.knob)
        else:
            with suppress(JoulewiseError):
                after = self._found(entry.knob)
        return self._restored(entry, Ending.STALE, after, why)

    def _free_clock(self, knob: str) -> Restored:
        gpu, why = self._controls.uuid, self._saved.unknown
        try:
            base = self._standing.to_base(knob)
        except JoulewiseError as error:
            return Restored(gpu, knob, Ending.FAILED, None, None, None, f"{error}; {why}")
        return Restored(gpu, knob, self._ending(knob, base), None, None, base, why)

    def _unknown_limit(self) -> Restored:
        found, shows = None, ""
        with suppress(JoulewiseError):  # a GPU that does not answer owes it all the same
            found = self._controls.value(LIMIT)
            default_w = self._controls.default_limit_w
            usual = "" if default_w is None else f" (by default {default_w:g} W)"
            shows = "" if found is None else f"it shows {found:g} W{usual}, and "
        return Restored(self._controls.uuid, LIMIT, Ending.FAILED, None, None, found, f"{shows}{self._saved.unknown}")

    def _found(self, knob: str) -> float | None:
        if knob != PERSISTENCE:
            return self._controls.value(knob)
        on = self._controls.persistence()
        return None if on is None else float(on)

    def _ending(self, knob: str, base: float | None) -> Ending:
        if base is None:
            return Ending.RESET
        return Ending.STANDING if knob in self._saved.standing else Ending.BASELINE

    def _restored(self, entry: Entry, ending: Ending, after: float | None, why: str = "") -> Restored:
        last = entry.wrote[-1] if entry.wrote else None
        return Restored(self._controls.uuid, entry.knob, ending, entry.before, last, after, why)
