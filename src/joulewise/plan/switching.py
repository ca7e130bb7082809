"""Settings for lanes in which a change of setting costs time and energy: fewer changes, where they do not pay.

The solver says what a second is worth to every operation (its flow). With that price on time each lane is on its own,
and its cheapest sequence of settings, changes paid for, is found step by step from its first operation to its last
(Viterbi). Prices that are too low make a plan late; ``plan.rounding`` looks for the lowest that do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from joulewise.plan.options import Curve, Floats

S = TypeVar("S")
Choice = NDArray[np.int32]
"""Of every operation the index of an option in its curve (fastest first)."""


class Lanes(Generic[S]):
    """The lanes of a problem and what each operation costs at each setting."""

    def __init__(self, curves: Sequence[Curve[S]], curve_of: NDArray[np.int32], previous: NDArray[np.int32]) -> None:
        names: dict[S, int] = {}
        for curve in curves:
            for point in curve.options:
                names.setdefault(point.setting, len(names))
        self._curve_of = curve_of
        shape = (len(curves), len(names))
        self._option = np.zeros(shape, np.int32)
        self._energy_j, self._time_s = np.full(shape, np.inf), np.zeros(shape)
        for index, curve in enumerate(curves):
            # Slowest first, so that of two options with one setting the faster stays.
            for at in range(len(curve.options) - 1, -1, -1):
                setting = names[curve.options[at].setting]
                self._option[index, setting] = at
                self._energy_j[index, setting] = curve.effective_j[at]
                self._time_s[index, setting] = curve.time_s[at]
        self._rows = _rows(previous)

    def cheapest(self, worth_w: Floats, switch_s: float, switch_j: float) -> Choice:
        """Of every lane the sequence of least energy + worth × time, changes of setting included."""
        lanes, steps = self._rows.shape
        settings = self._energy_j.shape[1]
        lane = np.arange(lanes)
        cost = np.zeros((lanes, settings))  # of the best sequence so far that ends in each setting
        came_from = np.zeros((steps, lanes, settings), np.int32)
        stays = np.broadcast_to(np.arange(settings, dtype=np.int32), cost.shape)
        for step in range(steps):
            at = self._rows[:, step]
            there = at >= 0
            curve, worth = self._curve_of[at], worth_w[at]
            here = self._energy_j[curve] + worth[:, None] * self._time_s[curve]
            best = cost.argmin(axis=1)
            change = cost[lane, best] + switch_j + worth * switch_s
            changes = (change[:, None] < cost) & (step > 0)
            came_from[step] = np.where(changes, best[:, None], stays)
            cost = np.where(there[:, None], np.where(changes, change[:, None], cost) + here, cost)
        choice = np.zeros(len(worth_w), np.int32)
        setting = cost.argmin(axis=1)
        for step in range(steps - 1, -1, -1):
            at = self._rows[:, step]
            there = at >= 0
            choice[at[there]] = self._option[self._curve_of[at[there]], setting[there]]
            setting = np.where(there, came_from[step, lane, setting], setting)
        return choice


def _rows(previous: NDArray[np.int32]) -> NDArray[np.int32]:
    """Operations lane by lane in order, filled up with −1. What belongs to no lane is a lane of its own."""
    following = {int(before): at for at, before in enumerate(previous) if before >= 0}
    lanes: list[list[int]] = []
    for first in np.flatnonzero(previous < 0).tolist():
        lane = [first]
        while lane[-1] in following:
            lane.append(following[lane[-1]])
        lanes.append(lane)
    rows = np.full((len(lanes), max(map(len, lanes))), -1, np.int32)
    for row, lane in zip(rows, lanes, strict=True):
        row[: len(lane)] = lane
    return rows
