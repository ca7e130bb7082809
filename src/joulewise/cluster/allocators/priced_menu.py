"""All jobs' ways as padded arrays: what prices are set on.

What it is: of each job its *offers* (a kind and a number of GPUs) and in each offer its settings, as arrays of one
shape, so that one line of numpy asks every job at once. A job with fewer offers or settings repeats its last: a
repetition changes no choice, and nothing has to be masked. What it is not: a decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from joulewise.cluster.allocators.by_ways import ByWays
from joulewise.cluster.state import Job, Kind, Way

# What a GPU at work draws more than one that idles, at least: points that a user brings may say any number, and the
# prices are sought by ratios of watts.
_LEAST_W = 1.0

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Card:
    """One job's ways that fit the cluster: ``rates`` (2, offers, settings) are units of work per second and the watts
    that a cluster draws more with it than with its slots' share of the nodes switched off; ``offers`` (2, offers) are
    GPUs and the number of the kind."""

    rates: Floats
    offers: Ints
    ways: tuple[tuple[Way, ...], ...]
    wide: dict[tuple[int, int], tuple[Floats, Ints]] = field(default_factory=dict)
    parts: dict[bytes, Card] = field(default_factory=dict)

    def padded(self, offers: int, settings: int) -> tuple[Floats, Ints]:
        """The arrays with so many offers and settings, the last repeated."""
        known = self.wide.get((offers, settings))
        if known is None:
            more = (0, offers - self.rates.shape[1])
            rates = np.pad(self.rates, ((0, 0), more, (0, settings - self.rates.shape[2])), mode="edge")
            known = self.wide[offers, settings] = (rates, np.pad(self.offers, ((0, 0), more), mode="edge"))
        return known

    def within(self, there: Ints) -> Card | None:
        """Those of its offers that so many GPUs of each kind are enough for; None where there is none."""
        fits = self.offers[0] <= there[self.offers[1]]
        if fits.all():
            return self
        if not fits.any():
            return None
        key = fits.tobytes()
        known = self.parts.get(key)
        if known is None:
            ways = tuple(way for way, fit in zip(self.ways, fits.tolist(), strict=True) if fit)
            known = self.parts[key] = Card(self.rates[:, fits], self.offers[:, fits], ways)
        return known


def card(ways: tuple[Way, ...], kinds: tuple[Kind, ...]) -> Card | None:
    """A job's card; None when nothing of it fits."""
    rows: list[tuple[Way, ...]] = []
    offers: list[tuple[int, int]] = []
    for number, kind in enumerate(kinds):
        for gpus in sorted({way.gpus for way in ways if way.kind == kind.name and 0 < way.gpus <= kind.gpus}):
            kept: list[Way] = []
            same = [way for way in ways if way.kind == kind.name and way.gpus == gpus]
            for way in sorted(same, key=lambda way: (way.power_w, way.unit_s)):
                if not kept or way.unit_s < kept[-1].unit_s:
                    kept.append(way)
            rows.append(tuple(kept))
            offers.append((gpus, number))
    if not rows:
        return None
    most = max(len(row) for row in rows)
    rates = np.empty((2, len(rows), most))
    for index, (row, (gpus, number)) in enumerate(zip(rows, offers, strict=True)):
        kind = kinds[number]
        slots_w = gpus * (kind.slot_w - kind.off_w / kind.gpus_per_node)
        for column in range(most):
            way = row[min(column, len(row) - 1)]
            rates[:, index, column] = 1.0 / way.unit_s, max(way.power_w + slots_w, gpus * _LEAST_W)
    return Card(rates, np.array(offers, dtype=np.int64).T, tuple(rows))


@dataclass(frozen=True, slots=True)
class Menu:
    """Jobs × offers × settings. Times are for all the work that is left: ``speed`` is its share done per second."""

    jobs: tuple[Job, ...]
    cards: tuple[Card, ...]
    speed: Floats
    power_w: Floats
    gpus: Ints
    kind: Ints
    there: Ints
    """GPUs of each kind."""
    off_w: Floats
    """What one slot of each kind draws in a node that is off."""

    @property
    def energy_j(self) -> Floats:
        """To the end, with the hosts' share: jobs × offers × settings."""
        return (self.power_w + (self.off_w[self.kind] * self.gpus)[:, :, None]) / self.speed

    def way(self, job: int, offer: int, setting: int) -> Way:
        """The way behind an offer's setting."""
        row = self.cards[job].ways[min(offer, len(self.cards[job].ways) - 1)]
        return row[min(setting, len(row) - 1)]


def menu(jobs: Sequence[Job], kinds: tuple[Kind, ...], known: ByWays[Card | None]) -> Menu | None:
    """The menu of those jobs that have a weight and a way that fits; None when there is no such job."""
    there = np.array([kind.gpus for kind in kinds], dtype=np.int64)
    # What is known of ways is for all GPUs: how many of them others hold may change from one decision to the next.
    whole = tuple(replace(kind, taken=0) for kind in kinds) if any(kind.taken for kind in kinds) else kinds
    pairs = [
        (job, fits)
        for job in jobs
        if job.weight > 0
        and (found := known.of(job.ways, whole)) is not None
        and (fits := found.within(there)) is not None
    ]
    if not pairs:
        return None
    cards = tuple(found for _, found in pairs)
    offers = max(found.rates.shape[1] for found in cards)
    settings = max(found.rates.shape[2] for found in cards)
    wide = [found.padded(offers, settings) for found in cards]
    rates = np.stack([rates for rates, _ in wide])
    counts = np.stack([counts for _, counts in wide])
    work = np.array([job.work_left for job, _ in pairs])
    return Menu(
        tuple(job for job, _ in pairs),
        cards,
        rates[:, 0] / work[:, None, None],
        rates[:, 1],
        counts[:, 0],
        counts[:, 1],
        there,
        np.array([kind.off_w / kind.gpus_per_node for kind in kinds]),
    )
