"""Letting clocks stand on several GPUs, on all of them or on none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from joulewise.core.errors import JoulewiseError, OutOfRange, Unsupported
from joulewise.core.knob import Space
from joulewise.daemon.gather import Gather
from joulewise.daemon.station import Station, Then
from joulewise.device.controls import CLOCKS
from joulewise.device.keeper import Keeper

Clocks: TypeAlias = Mapping[str, float | None]
"""Clock → where it stands; None: nowhere."""


def check(space: Space, clocks: Clocks, gpu: str) -> None:
    """Raise, before anything is touched, if ``clocks`` cannot stand on a GPU: Unsupported, OutOfRange."""
    for knob, value in clocks.items():
        if knob not in CLOCKS:
            raise Unsupported(
                f"{knob} cannot stand, only clocks can: a limit that is set without a lease stays by itself"
            )
        choices = space.knobs.get(knob)
        if choices is None:
            raise Unsupported(f"{knob} cannot be set on {gpu}; see 'joulewise doctor'")
        if value is not None and not choices.low <= value <= choices.high:
            raise OutOfRange(f"{knob}={value:g} on {gpu} is outside {choices}; see 'joulewise doctor'")


def stand(stations: Mapping[str, Station], clocks: Clocks, then: Callable[[Exception | None], None]) -> None:
    """Let ``clocks`` stand on all of ``stations``; ``then`` with what went wrong, or None.

    Where one fails the others are brought back to what stood there before; where that fails too, the error says so.
    """

    def stood(before: dict[str, Any], errors: dict[str, Exception]) -> None:
        error = next(iter(errors.values()), None)
        if error is None or not before:
            then(error)
            return

        def told(_: dict[str, Any], failures: dict[str, Exception]) -> None:
            then(_both(error, f"on {', '.join(failures)}", next(iter(failures.values()))) if failures else error)

        gather = Gather(before, told)
        for gpu, clocks_before in before.items():
            _back(stations[gpu], clocks_before, gather.slot(gpu))

    def late(station: Station) -> Then:
        def undo(before: Any, error: Exception | None) -> None:
            if error is None:
                _back(station, before, lambda _, __: None)

        return undo

    gather = Gather(stations, stood)
    for gpu, station in stations.items():
        station.call(lambda keeper: _stand(keeper, clocks), gather.slot(gpu), late=late(station))


def _back(station: Station, before: Clocks, then: Then) -> None:
    station.call(lambda keeper: _stand(keeper, before), then, must=True)


def _stand(keeper: Keeper, clocks: Clocks) -> dict[str, float | None]:
    """In a worker: what stood there before, or nothing is changed and it raises."""
    before: dict[str, float | None] = {}
    try:
        for knob, value in clocks.items():
            stood = keeper.saved.standing.get(knob)
            keeper.stand(knob, value)
            before[knob] = stood
    except JoulewiseError as error:
        for knob, stood in before.items():
            try:
                keeper.stand(knob, stood)
            except JoulewiseError as another:
                raise _both(error, f"for {knob} of {keeper.gpu}", another) from error
        raise
    return before


def _both(error: Exception, where: str, another: Exception) -> Exception:
    """``error``, and that going back failed too."""
    return type(error)(f"{error}; and what stood before could not be set again {where} ({another})")
