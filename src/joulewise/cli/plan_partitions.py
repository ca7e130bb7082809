"""``joulewise plan partitions``: of measured ways to overlap communication with computing, those worth having."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulewise.cli.plan_drawings import Plot, check_drawings
from joulewise.cli.plan_query import AsJson

if TYPE_CHECKING:
    from rich.console import RenderableType

    from joulewise.core.frontier import Frontier, Point
    from joulewise.core.knob import Setting
    from joulewise.plan.profile import Options


def partitions(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="CSV: part, slot, sms, [sm_mhz,] time_s, energy_j.")],
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """The time–energy frontier of measured partitions, overlapped or one after the other.

    A row of TABLE is one measurement: a kind of partition, the operation beside
    which its communication starts ('sequential': beside none), its SMs, the
    clock where several were tried, seconds and joules of one execution. Rows
    that repeat a schedule become a mean with its error.

      joulewise plan partitions schedules.csv --plot partitions.png
    """
    from joulewise.cli import plan_views
    from joulewise.core.frontier import Frontier
    from joulewise.plan import partition_files

    check_drawings({"TABLE": table}, None, plot)
    measured = partition_files.read(table)
    frontiers = {part: Frontier(points) for part, points in measured.items()}
    if plot is not None:
        _draw(plot, measured, frontiers)
    if as_json:
        found = {part: [_json(point, measured[part]) for point in front] for part, front in frontiers.items()}
        print(plan_views.dumped({"partitions": found}))
        return
    plan_views.print_page(_page(measured, frontiers))


def sequential(points: Sequence[Point[Setting]]) -> Point[Setting] | None:
    """What overlapping is compared with: the fastest of those that do not; None where none was measured."""
    from joulewise.plan.execution import overlapped

    return min((each for each in points if not overlapped(each.setting)), key=lambda each: each.time_s, default=None)


def _page(measured: Mapping[str, Options], frontiers: Mapping[str, Frontier[Setting]]) -> RenderableType:
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from joulewise.core.units import format_energy

    parts: list[RenderableType] = []
    for part, front in frontiers.items():
        plain = sequential(measured[part])
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        clocks = ("sm_mhz",) if any("sm_mhz" in point.setting for point in front) else ()
        for title in ("time", "energy", "error", *clocks, "slot × SMs", "", "faster", "saved"):
            table.add_column(title, justify="left" if title in ("slot × SMs", "") else "right", no_wrap=True)
        for point in front:
            table.add_row(
                f"{point.time_s * 1e3:.4g} ms",
                format_energy(point.energy_j),
                f"{max(point.time_error_s / point.time_s, point.energy_error_j / point.energy_j) * 100:.2f} %",
                *(f"{point.setting.get(knob, 0.0):g}" for knob in clocks),
                Text(_how(point)),
                _kind(point),
                *_gains(point, plain),
            )
        parts += [Text(f"{part}: {_worth(front, plain, len(measured[part]))}", style="bold"), table]
    return Group(*parts)


def _worth(front: Frontier[Setting], plain: Point[Setting] | None, count: int) -> str:
    from joulewise.report.plan_words import percent

    among = f"{len(front)} of {count} schedules are worth having"
    if plain is None:
        return f"{among}; none was measured that runs one after the other"
    if front.fastest is plain:
        return f"{among}; nothing is faster than one after the other"
    time, energy = _ratios(front.fastest, plain)
    more = f"{percent(abs(1 - energy))} {'less' if energy <= 1 else 'more'}"
    return f"{among}; the fastest takes {percent(1 - time)} less time and {more} energy than one after the other"


def _gains(point: Point[Setting], plain: Point[Setting] | None) -> list[str]:
    from joulewise.report.plan_words import percent

    ratios = [] if plain is None else _ratios(point, plain)
    return [percent(1 - ratio) for ratio in ratios]


def _ratios(point: Point[Setting], plain: Point[Setting]) -> tuple[float, float]:
    return point.time_s / plain.time_s, point.energy_j / plain.energy_j


def _how(point: Point[Setting]) -> str:
    from joulewise.plan.execution import launches

    return ", ".join(f"{launch.slot}×{launch.sms}" for launch in launches(point.setting))


def _kind(point: Point[Setting]) -> str:
    from joulewise.plan.execution import SEQUENTIAL, overlapped

    return "overlapped" if overlapped(point.setting) else SEQUENTIAL


def _json(point: Point[Setting], measured: Options) -> dict[str, Any]:
    plain = sequential(measured)
    time, energy = (None, None) if plain is None else _ratios(point, plain)
    return {
        "setting": dict(point.setting),
        "how": _how(point),
        "chosen": _kind(point),
        "time_s": point.time_s,
        "time_error_s": point.time_error_s,
        "energy_j": point.energy_j,
        "energy_error_j": point.energy_error_j,
        "time_over_sequential": time,
        "energy_over_sequential": energy,
    }


def _draw(path: Path, measured: Mapping[str, Options], frontiers: Mapping[str, Frontier[Setting]]) -> None:
    """Every schedule as a dot, overlapped or not, and the frontier through the best. OSError as writing goes."""
    import matplotlib
    from matplotlib.figure import Figure

    from joulewise.plan.execution import overlapped
    from joulewise.report.plot import HUES, INK, STYLE

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 3.6 * len(measured)), layout="constrained")
        every = figure.subplots(len(measured), 1, squeeze=False)[:, 0]
        for axes, (part, points) in zip(every, measured.items(), strict=True):
            for kind, look in ((True, {"marker": "o", "color": HUES[0]}), (False, {"marker": "s", "color": HUES[1]})):
                some = [each for each in points if overlapped(each.setting) is kind]
                name = "overlapped" if kind else "one after the other"
                times = [each.time_s * 1e3 for each in some]
                axes.scatter(times, [each.energy_j for each in some], s=14, alpha=0.6, label=name, **look)
            best = frontiers[part]
            times = [each.time_s * 1e3 for each in best]
            energies = [each.energy_j for each in best]
            axes.step(times, energies, color=INK, where="post", linewidth=1.1)
            axes.plot(times, energies, "o", color=INK, markersize=8, fillstyle="none", label="worth having")
            axes.set_title(part, loc="left", fontsize=11, fontweight="bold", parse_math=False)
            axes.set_xlabel("time (ms)")
            axes.set_ylabel("energy (J)")
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(frameon=False, fontsize=8.5)
        kind_of_file = path.suffix.lstrip(".").lower()
        figure.savefig(path, dpi=160, metadata={"Date": None} if kind_of_file == "svg" else None)
