"""One rank measures itself: its operations in iterations at a few settings, worked up to what it tells the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from joulewise.core.errors import BadSpec
from joulewise.core.knob import SM_MHZ, Setting
from joulewise.plan.profile_files import options_json
from joulewise.tune.follow_agenda import Stretch
from joulewise.tune.follow_profile import Seen, options, probes
from joulewise.tune.follow_rank import Rank
from joulewise.tune.follow_spans import Kind


class Measuring:
    """What ``rank`` has measured of itself so far."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._highest_mhz: float | None = None
        self._done: set[Stretch] = set()
        self._seen: dict[Kind, list[Seen]] = {}
        self._waiting: list[tuple[dict[str, float], float]] = []
        self._span_s: float | None = None

    def probes(self) -> list[Setting]:
        """The settings to measure, nothing set first and last. BadSpec where this GPU's clock cannot be set."""
        info = self._rank.gpu.info
        choices = info.space.knobs.get(SM_MHZ.name)
        self._highest_mhz = self._rank.latest_mhz or (choices.high if choices is not None else 0.0)
        return probes(info, self._highest_mhz)

    def look(self, stretches: Sequence[Stretch], iteration: int) -> None:
        """Work up stretches that end before ``iteration``, each once, while their readings are remembered."""
        for stretch in stretches:
            if stretch.last >= iteration or stretch in self._done or stretch.setting is None:
                continue
            self._done.add(stretch)
            # Of the very last iteration nothing was read afterwards, by which its end could be told.
            last = stretch.last - (stretch is stretches[-1])
            seen, waiting_w = self._rank.seen(stretch.first, last, stretch.setting)
            for kind, each in seen.items():
                self._seen.setdefault(kind, []).append(each)
            if waiting_w is not None:
                self._waiting.append((dict(stretch.setting), waiting_w))
            span_s = None if stretch.setting else self._rank.span_s(stretch.first, stretch.last)
            if span_s is not None:
                self._span_s = min(span_s, self._span_s or span_s)

    def report(self) -> dict[str, Any]:
        """What this rank's operations cost, as plain data. Takes a while. BadSpec where something is missing."""
        found = options(self._seen, self._rank.gpu.info)
        missing = {op[:2] for op in self._rank.order} - set(found)
        if missing or self._span_s is None:
            stage, kind = min(missing) if missing else self._rank.order[0][:2]
            raise BadSpec(f"nothing could be measured of the {kind} of stage {stage}; see 'joulewise doctor'")
        return {
            "options": options_json(found),
            "waiting": self._waiting,
            "span_s": self._span_s,
            "default_mhz": self._highest_mhz,
        }
