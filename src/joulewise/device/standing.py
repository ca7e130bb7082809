"""Where a clock is when nobody leases it: at the lock that stands, else at the site's baseline, else free.

A lock cannot be read, so where it belongs must be known: what stands is in the GPU's file, the baseline is the site's
word, which each entry repeats for a rescuer who does not know the site. A limit can be read, so none of this concerns
it: what was there comes back.
"""

from __future__ import annotations

from contextlib import suppress

from joulewise.core.errors import JoulewiseError, NotPermitted, NotSaved, OutOfRange, Unsupported
from joulewise.core.knob import Setting
from joulewise.device.controls import CLOCKS, Controls, as_set
from joulewise.device.saved import Memory

REFUSED = (NotPermitted, Unsupported, OutOfRange)
"""What a driver says when it has changed nothing."""


class Standing:
    """The places of one GPU's clocks. ``baseline`` is what the site declares, as far as we know it."""

    def __init__(self, controls: Controls, saved: Memory, baseline: Setting) -> None:
        self._controls = controls
        self._saved = saved
        self.baseline = baseline

    def declared(self, knob: str) -> float | None:
        """The baseline of a clock, as the hardware has it; None: none."""
        return self._exact(knob, self.baseline.get(knob) if knob in CLOCKS else None)

    def base(self, knob: str) -> float | None:
        """Where a clock belongs; None: it is not locked. Of a leased one that is what its taker knew, if we do not."""
        standing, entry = self._saved.standing.get(knob), self._saved.entries.get(knob)
        if standing is not None:
            return self._exact(knob, standing)
        declared = self.declared(knob)
        return declared if declared is not None or entry is None else self._exact(knob, entry.base)

    def to_base(self, knob: str) -> float | None:
        """Bring a clock to where it belongs; where that is."""
        base = self.base(knob)
        self._write(knob, base)
        return base

    def stand(self, knob: str, value: float | None) -> None:
        """Let ``value``, which the hardware has, stand from now on; None: nothing. See ``Keeper.stand``."""
        stood, before = self._saved.standing.get(knob), self.base(knob)
        if knob in self._saved.entries:
            if (owed := stood if value is None else value) is not None:
                # Ours to change, too: the end of the lease then brings it there, though the lease itself sets nothing.
                self._saved.intend(knob, owed)
            self._saved.stand(knob, value)
            return
        # Said before it is done, and unsaid only after: whoever finds it half done does it again.
        if value is not None:
            self._saved.stand(knob, value)
        try:
            self._write(knob, self.declared(knob) if value is None else value)
            if value is None:
                self._saved.stand(knob, None)
        except JoulewiseError as error:
            if not isinstance(error, REFUSED):
                with suppress(JoulewiseError):
                    self._write(knob, before)
            with suppress(NotSaved):
                self._saved.stand(knob, stood)
            raise

    def stand_again(self) -> None:
        """Lock what stands and is not leased, since nobody can see whether it still is. Never raises."""
        for knob in CLOCKS:
            if knob in self._saved.standing and knob not in self._saved.entries:
                with suppress(JoulewiseError):
                    self.to_base(knob)

    def _write(self, knob: str, value: float | None) -> None:
        if value is None:
            self._controls.reset(knob)
        else:
            self._controls.write(knob, value)

    def _exact(self, knob: str, value: float | None) -> float | None:
        choices = self._controls.space.knobs.get(knob)
        return None if value is None or choices is None else self._controls.exact(knob, as_set(knob, value, choices))
