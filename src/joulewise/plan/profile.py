"""What was measured of each stage: for every (stage, kind) the settings tried, each with its time and energy per GPU.

Read from CSV, as profilers of pipelines write it, or from our own JSON (``plan.profile_files``). A profile says nothing
of order or schedule; together with a ``Dag`` it gives the solver its options.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Point
from joulewise.core.knob import Setting
from joulewise.plan.dag import BACKWARD, INPUT_GRAD, KINDS, WEIGHT_GRAD, Dag

Options = tuple[Point[Setting], ...]

_NOISE = (
    0.03  # of a time; in the stages measured (A100, A40) no lower clock is faster, and step times jitter by some 1 %
)


@dataclass(frozen=True)
class Profile:
    """(stage, kind) → what it costs at each setting, fastest first. BadSpec for what cannot have been measured.

    Times are of one operation; the slowest GPU's where several work in lockstep. Energies are of one GPU, whole: with
    what it draws when it waits.
    """

    options: Mapping[tuple[int, str], Options]

    def __post_init__(self) -> None:
        if not self.options:
            raise BadSpec("the profile is empty; it needs a row for each stage, kind of operation and setting")
        ordered = {key: tuple(sorted(points, key=_fastest_first)) for key, points in sorted(self.options.items())}
        for (stage, kind), points in ordered.items():
            if kind not in KINDS:
                raise BadSpec(f"stage {stage} has an operation {kind!r}; operations are {', '.join(KINDS)}")
            if not points:
                raise BadSpec(f"the {kind} of stage {stage} was measured at no setting")
            for point in points:
                _check(stage, kind, point)
            if len({point.setting for point in points}) < len(points):
                raise BadSpec(f"the {kind} of stage {stage} has a setting twice; repeats belong together as one mean")
        object.__setattr__(self, "options", ordered)

    @property
    def stages(self) -> int:
        """How many stages it knows."""
        return len({stage for stage, _ in self.options})

    def of(self, dag: Dag) -> list[Options]:
        """The options of every operation of ``dag``; the same object for all of one stage and kind.

        BadSpec where a stage or kind was not measured, or where there is nothing to choose at all.
        """
        needed = sorted({(operation.stage, operation.kind) for operation in dag.operations})
        for stage, kind in needed:
            if (stage, kind) not in self.options:
                raise BadSpec(self._missing(stage, kind))
        if all(len(self.options[key]) == 1 for key in needed):
            raise BadSpec(
                "every operation was measured at one setting only, so there is nothing to choose; "
                "measure each stage at five or more clocks"
            )
        return [self.options[operation.stage, operation.kind] for operation in dag.operations]

    def remarks(self) -> list[str]:
        """What a user should know of it: operations that leave nothing to choose, or are noisy. One line each."""
        alone = [key for key, points in self.options.items() if len(points) == 1]
        noisy = [key for key, points in self.options.items() if _lead(points) > _NOISE]
        found = []
        if alone:
            found.append(f"measured at one setting only, so never slowed down: {_listed(alone)}")
        if noisy:
            found.append(
                f"noisy, since over {_NOISE * 100:g} % faster at a lower clock than at the highest: {_listed(noisy)}; "
                "measure longer, or some of the saving is luck"
            )
        return found

    def scaled(self, *, time: float = 1.0, energy: float = 1.0) -> Profile:
        """The same stages doing ``time`` times longer work for ``energy`` times the joules; both above 0."""
        if not (0 < time < math.inf and 0 < energy < math.inf):
            raise BadSpec(f"scale factors must be above 0, not {time:g} for time and {energy:g} for energy")
        return Profile(
            {
                key: tuple(
                    Point(
                        point.time_s * time,
                        point.energy_j * energy,
                        point.setting,
                        point.time_error_s * time,
                        point.energy_error_j * energy,
                    )
                    for point in points
                )
                for key, points in self.options.items()
            }
        )

    def with_split_backward(self, share: float) -> Profile:
        """An assumption for schedules that split backwards: input_grad takes ``share`` of a backward's time and energy.

        Stages whose two halves were measured keep them. ``share`` is between 0 and 1.
        """
        if not 0 < share < 1:
            raise BadSpec(f"the share of input_grad in a backward is between 0 and 1, not {share:g}")
        options = dict(self.options)
        for (stage, kind), points in self.options.items():
            if kind == BACKWARD:
                for part, of_it in ((INPUT_GRAD, share), (WEIGHT_GRAD, 1 - share)):
                    whole = Profile({(stage, part): points}).scaled(time=of_it, energy=of_it)
                    options.setdefault((stage, part), whole.options[stage, part])
        return Profile(options)

    def _missing(self, stage: int, kind: str) -> str:
        known = sorted({each for each, _ in self.options})
        if stage not in known:
            there = f"{known[0]}…{known[-1]}" if known == list(range(known[0], known[-1] + 1)) else str(known)
            return f"stage {stage} is missing in the profile, which has {there}; measure it, or plan fewer stages"
        kinds = ", ".join(each for at, each in self.options if at == stage)
        split = "; or say how a backward divides, with --split-backward" if kind in (INPUT_GRAD, WEIGHT_GRAD) else ""
        return f"the {kind} of stage {stage} is missing in the profile, which has its {kinds}; measure it{split}"


def _lead(points: Options) -> float:
    """By what share of its time the fastest setting beats the highest clock, which it cannot but by noise."""
    if any("sm_mhz" not in point.setting for point in points):
        return 0.0
    highest = max(points, key=lambda point: point.setting["sm_mhz"])
    return highest.time_s / min(point.time_s for point in points) - 1.0


def _listed(keys: list[tuple[int, str]]) -> str:
    names = [f"{kind} of stage {stage}" for stage, kind in keys]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def averaged(measured: Iterable[tuple[int, str, Point[Setting]]]) -> Profile:
    """A profile from rows in any order. Repeats of one stage, kind and setting become their mean and its error."""
    repeats: dict[tuple[int, str], dict[Setting, list[Point[Setting]]]] = {}
    for stage, kind, point in measured:
        repeats.setdefault((stage, kind), {}).setdefault(point.setting, []).append(point)
    return Profile({key: tuple(map(mean, found.values())) for key, found in repeats.items()})


def mean(points: Sequence[Point[Setting]]) -> Point[Setting]:
    """Repeats of one setting as one point with its error; a single one as it is."""
    if len(points) == 1:
        return points[0]
    time_s, time_error_s = _mean_and_error([point.time_s for point in points])
    energy_j, energy_error_j = _mean_and_error([point.energy_j for point in points])
    return replace(
        points[0], time_s=time_s, energy_j=energy_j, time_error_s=time_error_s, energy_error_j=energy_error_j
    )


def _mean_and_error(values: list[float]) -> tuple[float, float]:
    """The mean and its standard error."""
    mean = math.fsum(values) / len(values)
    spread = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(spread / len(values))


def _fastest_first(point: Point[Setting]) -> tuple[float, float]:
    return point.time_s, point.energy_j


def _check(stage: int, kind: str, point: Point[Setting]) -> None:
    where = f"the {kind} of stage {stage} at {point.setting}"
    if stage < 0:
        raise BadSpec(f"stage {stage} is below 0; stages count from 0")
    for name, value in (("time_s", point.time_s), ("energy_j", point.energy_j)):
        if not value > 0:
            raise BadSpec(f"{where} has {name} {value:g}; it must be above 0")
    for name, value in (("time_error_s", point.time_error_s), ("energy_error_j", point.energy_error_j)):
        if not 0 <= value < math.inf:
            raise BadSpec(f"{where} has {name} {value:g}; it must be 0 or more")
