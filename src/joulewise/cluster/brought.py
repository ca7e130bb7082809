"""Frontiers that a job brings along: their plain JSON form, and what the scheduler believes of a job because of them.

The form, as it stands in an order and in files::

    {"gpu": "a100-sxm", "unit": "step", "source": "run 20260314-101500-3f2a",
     "gpus": {"4": [{"time_s": 0.21, "energy_j": 290.0, "setting": {"sm_mhz": 1200}}, …]}}

``gpus`` maps a number of GPUs to points of one unit of work: seconds, joules over all these GPUs (hosts apart), what is
set on each of them, and, if known, one standard error of either (``time_error_s``, ``energy_error_j``). Points that are
slower and dearer than another belong to it where they draw less power: a cap is kept by them. A unit is a
``step`` as the script counts them in its progress; a ``period`` that the tuner found by itself, some fixed number of
steps; or a whole ``run``. ``gpu`` is the model they were found on: they say nothing of another.

What it is not: where such points come from (``brought_sources``), or a scheduler's belief as such (``belief``).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from joulewise.cluster.belief import Fabric, FittedBelief, FrontierBelief, WorkGuess
from joulewise.cluster.engine import Order
from joulewise.cluster.life import Belief
from joulewise.cluster.state import Way
from joulewise.core.errors import BadSpec, Unsupported
from joulewise.core.frontier import Frontier, Point
from joulewise.core.knob import Setting
from joulewise.model import catalog
from joulewise.model.catalog import GpuModel

UNITS = ("step", "period", "run")
_FIELDS = {"gpu", "unit", "gpus", "source"}
_POINT = {"time_s", "energy_j", "setting", "time_error_s", "energy_error_j"}
_MOST_GPUS, _MOST_POINTS = 65536, 1000
_LEAST, _MOST = 1e-9, 1e12  # seconds, joules, values of knobs: far outside of what happens, and their ratios are finite
_USUAL_BATCH = 32.0  # samples a GPU, where nobody says: only its changes matter, and an order has one batch
_USUAL_S, _UNSURE = 3600.0, 1.5  # of a job whose size nobody knows: median, and spread of the logarithm
_PLAIN = "plain"  # one memory for all plain jobs, and one tuple of ways for all that ask for as many GPUs
_RUN_UNITS = 1000.0  # units that a run counts as while its steps are not known


def plain(
    of: Mapping[int, Iterable[Point[Setting]]], *, gpu: str, unit: str = "step", source: str = ""
) -> dict[str, Any]:
    """The plain form, checked, without what ``points`` would leave out. BadSpec as ``points``."""
    made: dict[str, Any] = {
        "gpu": gpu,
        "unit": unit,
        "source": source,
        "gpus": {str(gpus): [_plain_point(point) for point in found] for gpus, found in sorted(of.items())},
    }
    kept = {gpus: {point.setting for point in found} for gpus, found in points(made).items()}
    for gpus, found in made["gpus"].items():
        made["gpus"][gpus] = [point for point in found if Setting(**point["setting"]) in kept[int(gpus)]]
    return made


def frontiers(brought: Mapping[str, Any]) -> dict[int, Frontier[Setting]]:
    """GPUs → frontier of one unit of work, without the points that only a power cap needs. BadSpec as ``points``."""
    return {gpus: Frontier(found) for gpus, found in points(brought).items()}


def points(brought: Mapping[str, Any]) -> dict[int, tuple[Point[Setting], ...]]:
    """GPUs → points of one unit of work, fastest first; those that another beats in time, energy and power are left
    out. BadSpec, naming the part, where ``brought`` is not of the form above."""
    if not isinstance(brought, Mapping):
        raise BadSpec(f"what a job brings is a {type(brought).__name__}, not an object with gpu, unit and gpus")
    if unknown := set(map(str, brought)) - _FIELDS:
        raise BadSpec(f"what a job brings has no {_listed(unknown)}; it has gpu, unit, gpus and source")
    gpu, unit, gpus = brought.get("gpu"), brought.get("unit", "step"), brought.get("gpus")
    if not isinstance(gpu, str) or not gpu:
        raise BadSpec(f"gpu is {gpu!r}; name the GPU model that the points were found on, as 'a100-sxm'")
    if unit not in UNITS:
        raise BadSpec(f"unit is {unit!r}; it is one of {', '.join(UNITS)}")
    if not isinstance(brought.get("source", ""), str):
        raise BadSpec("source is not a text; it says where the points come from")
    if not isinstance(gpus, Mapping) or not gpus:
        raise BadSpec("gpus must map at least one number of GPUs to a list of points")
    return {_count(number): _found(f"gpus.{number}", each) for number, each in gpus.items()}


def joined(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Several of one job in one, as after runs on 2, 4 and 8 GPUs. BadSpec where they are of different GPUs or units;
    of one number of GPUs the last one counts."""
    if not parts:
        raise BadSpec("nothing to join; give at least one")
    first = parts[0]
    found: dict[int, tuple[Point[Setting], ...]] = {}
    for part in parts:
        for name in ("gpu", "unit"):
            if part.get(name) != first.get(name):
                raise BadSpec(f"points of {name} {part.get(name)} and {first.get(name)} cannot be joined")
        found.update(points(part))
    source = ", ".join(filter(None, dict.fromkeys(str(part.get("source", "")) for part in parts)))
    return plain(found, gpu=first["gpu"], unit=first.get("unit", "step"), source=source)


def scaled(found: Iterable[Point[Setting]], factor: float) -> tuple[Point[Setting], ...]:
    """The same settings doing ``factor`` times the work."""
    return tuple(
        Point(
            point.time_s * factor,
            point.energy_j * factor,
            point.setting,
            point.time_error_s * factor,
            point.energy_error_j * factor,
        )
        for point in found
    )


def refuse_unfit(order: Order) -> None:
    """BadSpec for an order that can never be scheduled as it is; for whoever takes it in."""
    if not order.least_gpus <= order.gpus <= (order.most_gpus or order.gpus):
        raise BadSpec(
            f"job {order.name!r} asks for {order.gpus} GPUs, outside its own {order.least_gpus} to {order.most_gpus}"
        )
    if order.brought is None:
        return
    sizes = sorted(points(order.brought))
    if not order.elastic and order.gpus not in sizes:
        raise BadSpec(
            f"job {order.name!r} asks for {order.gpus} GPUs and brings points of {', '.join(map(str, sizes))}; "
            "bring points of that number, or give it a checkpoint folder so that it can have another"
        )


def belief_of(order: Order, fabric: Fabric, *, work: float | None = None, gpus_there: int = 1024) -> Belief:
    """What is believed of a job when it comes. A unit of its work is a step.

    With points of this fabric's GPU it is these (``FrontierBelief``); an elastic job has other sizes as well, which
    scale from the points as the throughput law says. Without, or with points of another GPU, it is the law alone
    (``FittedBelief``): jobs with the same ``workload`` and batch learn from each other, others from themselves. Only
    sizes from ``least_gpus`` to ``most_gpus`` (None: ``gpus_there``) are offered, and of a rigid job only its own.

    ``work``: how many steps it takes in all, where its progress tells that better than its order. Where nobody knows,
    an hour on the GPUs asked for is expected, very unsurely. Points of a whole run are cut into so many steps.
    """
    work = work if work is not None else order.work
    fitted = _fitted(order, fabric, work, gpus_there)
    brought = order.brought
    if brought is not None and not isinstance(brought, Mapping):
        raise BadSpec(f"what a job brings is a {type(brought).__name__}, not an object with gpu, unit and gpus")
    if brought is None or not _same(str(brought.get("gpu", "")), fabric.model):
        return _Bounded(fitted, order, gpus_there)
    found = points(brought)
    if brought.get("unit") == "run":
        work = work or _RUN_UNITS
        found = {gpus: scaled(each, 1.0 / work) for gpus, each in found.items()}
    near = min(found, key=lambda gpus: abs(math.log(gpus / order.gpus)))
    guess = WorkGuess(work) if work else _guess(found[near][0].time_s)
    own = FrontierBelief(found, guess=guess, kind=fabric.kind)
    if order.elastic:
        return _Bounded(_Stretched(own, fitted, near), order, gpus_there)
    return _Bounded(own if order.gpus in found else fitted, order, gpus_there)


def plain_belief_of(order: Order, fabric: Fabric, *, gpus_there: int = 1024) -> Belief:
    """What is thought of any job that asks for so many GPUs, whatever else its order or its script says: the throughput
    law, on all sizes that there are, for an hour of work on the GPUs asked for. Without any other field ``belief_of``
    says the same on the sizes that were tried, as long as nothing was learnt. ``fabric`` is of such beliefs alone and
    is told nothing, for what scripts tell of their progress is their users' word (``fairness``)."""
    fabric.memory(_PLAIN, _USUAL_BATCH).largest = gpus_there
    bare = Order(order.name, (), order.gpus, checkpoint=order.checkpoint)
    return _fitted(bare, fabric, None, gpus_there, _PLAIN)


class _Bounded:
    """A belief, without the ways whose numbers of GPUs its order does not allow."""

    def __init__(self, belief: Belief, order: Order, gpus_there: int) -> None:
        self._belief = belief
        most = order.most_gpus if order.most_gpus is not None else gpus_there
        least, most = (order.least_gpus, most) if order.elastic else (order.gpus, order.gpus)
        self._least, self._most = min(least, order.gpus), max(most, order.gpus)
        self._all: tuple[Way, ...] | None = None
        self._kept: tuple[Way, ...] = ()

    def ways(self) -> tuple[Way, ...]:
        ways = self._belief.ways()
        if ways is not self._all:
            self._all = ways
            self._kept = tuple(way for way in ways if self._least <= way.gpus <= self._most)
        return self._kept

    def tell(self, way: Way, nodes: int, unit_s: float, unit_j: float) -> None:
        self._belief.tell(way, nodes, unit_s, unit_j)

    def work_left(self, done: float) -> float:
        return self._belief.work_left(done)


class _Stretched:
    """Points of some sizes as brought, and of others as the law says, times what the points differ from the law at
    the size ``near``. As soon as the job was seen, points and law agree there, and the factor is about 1."""

    def __init__(self, brought: FrontierBelief, fitted: FittedBelief, near: int) -> None:
        self._brought, self._fitted, self._near = brought, fitted, near
        self._sizes = {way.gpus for way in brought.ways()}
        self._made_of: tuple[tuple[Way, ...], tuple[Way, ...]] | None = None
        self._ways: tuple[Way, ...] = ()

    def ways(self) -> tuple[Way, ...]:
        own, law = self._brought.ways(), self._fitted.ways()
        if self._made_of is None or self._made_of[0] is not own or self._made_of[1] is not law:
            self._made_of, self._ways = (own, law), (*own, *self._others(own, law))
        return self._ways

    def tell(self, way: Way, nodes: int, unit_s: float, unit_j: float) -> None:
        self._fitted.tell(way, nodes, unit_s, unit_j)
        self._brought.tell(way, nodes, unit_s, unit_j)

    def work_left(self, done: float) -> float:
        return self._brought.work_left(done)

    def _others(self, own: tuple[Way, ...], law: tuple[Way, ...]) -> list[Way]:
        here = [way for way in law if way.gpus == self._near]
        if not here:  # the law offers no such size
            here = [min(law, key=lambda way: abs(math.log(way.gpus / self._near)))]
        said = min(here, key=lambda way: way.unit_s)
        is_so = min((way for way in own if way.gpus == self._near), key=lambda way: way.unit_s)
        slower, dearer = is_so.unit_s / said.unit_s, is_so.unit_j / said.unit_j
        return [
            replace(way, unit_s=way.unit_s * slower, unit_j=way.unit_j * dearer)
            for way in law
            if way.gpus not in self._sizes
        ]


def _fitted(
    order: Order, fabric: Fabric, work: float | None, gpus_there: int, alike: Hashable | None = None
) -> FittedBelief:
    """``alike``: what it is known by among jobs that learn from each other; None: its workload, or itself alone."""
    batch = float(order.batch) if order.batch else _USUAL_BATCH * order.gpus
    own = (order.workload, order.batch) if order.workload else ("job", order.name)
    fingerprint = own if alike is None else alike

    def made(guess: WorkGuess) -> FittedBelief:
        return FittedBelief(
            fabric,
            fingerprint,
            batch=batch,
            gpus_asked=order.gpus,
            gpus_most=order.most_gpus if order.most_gpus is not None else gpus_there,
            guess=guess,
            elastic=order.elastic,
        )

    if work:
        return made(WorkGuess(work))
    usual = made(WorkGuess(1.0))
    return made(_guess(min(way.unit_s for way in usual.ways() if way.gpus == order.gpus)))


def _guess(unit_s: float) -> WorkGuess:
    return WorkGuess(_USUAL_S / unit_s, _UNSURE)


def _same(gpu: str, model: GpuModel) -> bool:
    try:
        return catalog.load(gpu).key == model.key
    except BadSpec:
        return gpu.casefold() == model.name.casefold()


def _found(place: str, value: Any) -> tuple[Point[Setting], ...]:
    if not isinstance(value, list | tuple) or not value:
        raise BadSpec(f"{place} is no list of points; each has time_s, energy_j and setting")
    if len(value) > _MOST_POINTS:
        raise BadSpec(f"{place} has {len(value)} points; at most {_MOST_POINTS} are taken")
    found = [_point(f"{place}[{at}]", point) for at, point in enumerate(value)]
    if len({point.setting for point in found}) < len(found):
        raise BadSpec(f"{place} has a setting twice; one point each")
    return _unbeaten(found)


def _unbeaten(found: Sequence[Point[Setting]]) -> tuple[Point[Setting], ...]:
    """Fastest first; by time, energy and power, of which the first of equal ones stays."""
    kept: list[Point[Setting]] = []
    for point in sorted(found, key=lambda each: (each.time_s, each.energy_j)):
        if not any(each.energy_j <= point.energy_j and each.power_w <= point.power_w for each in kept):
            kept.append(point)
    return tuple(kept)


def _point(place: str, value: Any) -> Point[Setting]:
    if not isinstance(value, Mapping):
        raise BadSpec(f"{place} is no object; it has time_s, energy_j and setting")
    if unknown := set(map(str, value)) - _POINT:
        raise BadSpec(f"{place} has no {_listed(unknown)}; a point has {', '.join(sorted(_POINT))}")
    setting = value.get("setting", {})
    if not isinstance(setting, Mapping):
        raise BadSpec(f"{place}.setting is no object of knobs, as {{'sm_mhz': 1200}}")
    try:
        held = Setting(**{str(name): _number(f"{place}.setting.{name}", each) for name, each in setting.items()})
    except Unsupported as fault:
        raise BadSpec(f"{place}: {fault}") from None
    return Point(
        _number(f"{place}.time_s", value.get("time_s")),
        _number(f"{place}.energy_j", value.get("energy_j")),
        held,
        _number(f"{place}.time_error_s", value.get("time_error_s", 0.0), zero=True),
        _number(f"{place}.energy_error_j", value.get("energy_error_j", 0.0), zero=True),
    )


def _number(place: str, value: Any, *, zero: bool = False) -> float:
    # Compared before anything is computed: an integer of JSON may be larger than any float.
    if not isinstance(value, int | float) or isinstance(value, bool) or not (0 if zero else _LEAST) <= value <= _MOST:
        shown = f"{value:g}" if isinstance(value, float) else ascii(value)[:40]
        raise BadSpec(f"{place} is {shown}; it must be a number from {0 if zero else _LEAST:g} to {_MOST:g}")
    return float(value)


def _count(number: Any) -> int:
    text = str(number)
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= _MOST_GPUS:
        raise BadSpec(f"gpus.{text} is no number of GPUs between 1 and {_MOST_GPUS}")
    return int(text)


def _plain_point(point: Point[Setting]) -> dict[str, Any]:
    made: dict[str, Any] = {"time_s": point.time_s, "energy_j": point.energy_j, "setting": dict(point.setting)}
    errors = {"time_error_s": point.time_error_s, "energy_error_j": point.energy_error_j}
    return {**made, **{name: error for name, error in errors.items() if error}}


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))
