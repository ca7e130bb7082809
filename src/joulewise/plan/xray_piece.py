"""The pieces that one step of a job is made of: a run of kernels, a link, or host work. See ``plan/xray_pieces``."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from joulewise.plan.trace_kinds import Kind

RUN, LINK, HOST = "run", "link", "host"


@dataclass(slots=True)
class Piece:
    """A run of kernels, a link, or host work. Seconds as seen in the trace, at the clock it ran at."""

    what: str
    lane: int
    start_s: float
    """When it began, from the step's begin."""
    busy_s: dict[Kind, float] = field(default_factory=dict)
    fixed_s: float = 0.0
    """Passes whatever the clock: pauses of the GPU, host work."""
    names: Counter[tuple[Kind, str]] = field(default_factory=Counter)
    """Seconds by kind and short name."""
    key: tuple[str, str] = ("", "")
    """Of a collective: its ranks and its name."""

    @property
    def duration_s(self) -> float:
        """As seen."""
        return sum(self.busy_s.values()) + self.fixed_s


def by_kind(
    pieces: list[Piece], edges: list[tuple[int, int, float]]
) -> tuple[list[Piece], list[tuple[int, int, float]]]:
    """Runs made chains of one piece a kind."""
    parts: list[Piece] = []
    inner: list[tuple[int, int, float]] = []
    first: list[int] = []
    last: list[int] = []
    for piece in pieces:
        first.append(len(parts))
        kinds = sorted(kind for kind, seconds in piece.busy_s.items() if seconds > 0)
        if piece.what != RUN or len(kinds) < 2:
            parts.append(piece)
        else:
            for number, kind in enumerate(kinds):
                names = Counter({key: seconds for key, seconds in piece.names.items() if key[0] is kind})
                fixed_s = piece.fixed_s if number == 0 else 0.0
                parts.append(Piece(RUN, piece.lane, piece.start_s, {kind: piece.busy_s[kind]}, fixed_s, names))
            inner += [(index, index + 1, 0.0) for index in range(first[-1], len(parts) - 1)]
        last.append(len(parts) - 1)
    return parts, [(last[one], first[other], lag_s) for one, other, lag_s in edges] + inner
