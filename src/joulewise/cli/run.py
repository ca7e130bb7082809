"""``joulewise run``: measure a command without changing it, and with ``--tune`` make it spend less.

The command keeps its terminal, its output, its signals and its exit code; we read its GPUs meanwhile and say at
the end what they used. Whatever becomes of a GPU, a recording or a simulator, the command goes on. Nothing is
printed while it runs, unless ``--live`` asks for it or what ``--set`` or ``--tune`` held is lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulewise.cli import complain, outputs, say, talk
from joulewise.cli.child import Child, exit_code_of, look_for, signals_held, why_not_started
from joulewise.cli.config_files import from_a_file
from joulewise.cli.gpus import HELP, OpenGpus, opened
from joulewise.cli.one_thread import load_numpy
from joulewise.core.errors import BadSpec, NoGpu, NoReading
from joulewise.core.event import Began
from joulewise.core.knob import Setting
from joulewise.core.measurement import Outcome
from joulewise.report import knobs

if TYPE_CHECKING:
    from joulewise.cli.held import Held
    from joulewise.cli.live import LiveView
    from joulewise.cli.objectives import Wanted
    from joulewise.cli.summary import Result
    from joulewise.cli.tuned import TuneResult
    from joulewise.cli.tuning import Tuning
    from joulewise.report.keeping import Keeping
    from joulewise.report.meter import Meter
    from joulewise.store.store import Store

_UNSEEN_WAIT_S = 5.0
"""How long to sleep while nothing is shown: a child's end that a foreign thread of ours might have swallowed shall not
go unseen for long."""
_HELD_WAIT_S = 0.5
"""With ``--set`` and ``--tune``: how late the loss of what was held may be told."""
_TUNING = "With --tune"
_PROGRAM_CHARACTERS = 100  # enough for people to know it by


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where the result goes besides the terminal; checked before the command starts."""

    json: outputs.JsonFile | None
    record: Path | None
    plot: Path | None
    report: Path | None = None

    @classmethod
    def checked(
        cls, command: list[str], json: str | None, record: Path | None, plot: Path | None, report: Path | None
    ) -> Outputs:
        """BadSpec or MissingPart when one of them could not be written later, two are one file, or one is a word of
        ``command`` or holds something that is not ours. A picture or a page that is there makes way."""
        at = Path(json) if json is not None and json != outputs.STDOUT else None
        named = {"--json": at, "--record": record, "--plot": plot, "--report": report}
        outputs.refuse_words_of(command, named)
        if record is not None:
            if str(record) == outputs.STDOUT:
                raise BadSpec("--record - is no file: stdout is the command's; name a file for the recording")
            outputs.refuse_unwritable("--record", record)
            outputs.refuse_another_s("--record", record, outputs.is_recording)
        if plot is not None:
            from joulewise.report.plot import check

            check(plot)
            outputs.refuse_unwritable("--plot", plot)
        if report is not None:
            outputs.refuse_no_html("--report", report)
            outputs.refuse_unwritable("--report", report)
        file = outputs.JsonFile(json) if json is not None else None
        outputs.refuse_one_for_two(named)
        return cls(file, record, plot, report)


def run(
    ctx: typer.Context,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="The command and its arguments, after --.")],
    tune: Annotated[
        bool, typer.Option("--tune", help="Find and hold the setting that saves most energy, and prove it.")
    ] = False,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KNOB=VALUE", help="Hold power_limit_w, sm_mhz or memory_mhz meanwhile."),
    ] = None,
    gpu: Annotated[str | None, typer.Option(metavar="SPEC", help=HELP)] = None,
    live: Annotated[
        bool, typer.Option("--live/--no-live", help="Show watts and joules below the command's output.")
    ] = False,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the result as JSON; - is stdout, its last line.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw power and clocks over time: .svg, .png or .pdf.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every reading as JSON lines; --gpu replay:FILE reads it.")
    ] = None,
    no_keep: Annotated[bool, typer.Option("--no-keep", help="Leave the store alone: no history, no readings.")] = False,
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="Time between two readings of power.")] = 0.1,
    speed: Annotated[
        float, typer.Option(metavar="K", help="With --gpu sim:…: seconds that it lives per second.")
    ] = 1.0,
    max_slowdown: Annotated[
        str | None,
        typer.Option(
            metavar="2%", help="How much slower it may get; 2% unless said otherwise.", rich_help_panel=_TUNING
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(metavar="WHAT", help="energy (usual), money, edp, ed2p or zeus[:ETA].", rich_help_panel=_TUNING),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Set nothing; say what would be set.", rich_help_panel=_TUNING)
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a report with plots.", rich_help_panel=_TUNING)
    ] = None,
    gpu_hour_price: Annotated[
        float | None, typer.Option(metavar="PRICE", help="Of one GPU for one hour.", rich_help_panel=_TUNING)
    ] = None,
    kwh_price: Annotated[
        float | None, typer.Option(metavar="PRICE", help="Of one kWh of electricity.", rich_help_panel=_TUNING)
    ] = None,
    host_watts: Annotated[
        float | None, typer.Option(metavar="W", help="What the node draws besides its GPUs.", rich_help_panel=_TUNING)
    ] = None,
    eta: Annotated[
        float | None, typer.Option(metavar="0…1", help="Weight of energy for zeus.", rich_help_panel=_TUNING)
    ] = None,
    power_budget: Annotated[
        float | None, typer.Option(metavar="W", help="All its GPUs together, at most.", rich_help_panel=_TUNING)
    ] = None,
    energy_budget: Annotated[
        float | None, typer.Option(metavar="J", help="A step, all GPUs, at most.", rich_help_panel=_TUNING)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Of every draw; without it one is drawn.", rich_help_panel=_TUNING)
    ] = None,
) -> None:
    """Measure a command: joules ± error, watts, seconds, GPU by GPU; with --tune, make it spend less.

    The command, its output and its exit code stay as they are; the result goes to stderr when it has ended. --tune
    watches it, finds the clocks and power limit that save most energy within --max-slowdown, holds them, and proves
    the saving; what was set is put back at the end, however it ends. Where it cannot tune, it says why and only
    measures. Runs are kept for 'joulewise history' and 'joulewise serve'.

      joulewise run -- python train.py --epochs 3
      joulewise run --tune --report report.html -- python train.py
      joulewise run --set power_limit_w=500,sm_mhz=1500 -- python train.py
      joulewise run --gpu sim:h200 --live --plot power.svg -- ./train.sh

    Exit code: the command's; 127 if it is not found. 2: a flag, a file or a value is wrong, 1: nothing to measure
    with, or no right to set; then it was not started.
    """
    if not 0.01 <= interval <= 10:
        raise BadSpec(f"--interval {interval:g} is outside 0.01 to 10 seconds; 0.1 is usual")
    wanted = knobs.setting(setting or [])
    aim = _aim(
        ctx,
        tune,
        {"--max-slowdown": max_slowdown, "--objective": objective, "--dry-run": dry_run or None, "--report": report}
        | {"--gpu-hour-price": gpu_hour_price, "--kwh-price": kwh_price, "--host-watts": host_watts, "--eta": eta}
        | {"--power-budget": power_budget, "--energy-budget": energy_budget, "--seed": seed},
    )
    if aim is not None and wanted:
        raise BadSpec("--tune and --set cannot be had together: what is set by hand cannot be tuned; choose one")
    with ExitStack() as stack:
        # First of all: whatever starts threads below must inherit what is held.
        mask = stack.enter_context(signals_held())
        # An old recording makes way only for a new one, so the command is looked for before anything is opened.
        with a_shells_exit_code(command[0]):
            look_for(command[0])
        files = Outputs.checked(command, json, record, plot, report)
        load_numpy()
        found = _open_gpus(ctx, stack, gpu, speed)
        if not found.gpus and not wanted and aim is None:  # what was to be tuned runs untuned: the result says why
            _refuse_without_host(found.why)
            say(ctx, f"measuring the host only: {found.why}")
        from joulewise.report import keeping
        from joulewise.report.meter import Meter

        store, trouble = (None, None) if no_keep else keeping.opened()
        if store is not None:
            stack.callback(store.close)
        clock = found.gpus[0].time.now_s if found.gpus else time.monotonic
        # Of what the GPUs show as their time: with it their readings, and events, are put in the world's.
        unix_s = time.time() - clock()
        meter = stack.enter_context(Meter(found.gpus, interval_s=interval, record=files.record, unix_s=unix_s))
        held = stack.enter_context(_hold(found, wanted, command)) if wanted else None
        tuning = _tuning(found, aim, command, dry_run, seed, store, unix_s) if aim is not None else None
        if tuning is not None:
            stack.enter_context(tuning)
        kept = None
        if store is not None:
            facts = keeping.facts_of(command, found, unix_s=unix_s, **({"set": dict(wanted)} if wanted else {}))
            kept = keeping.of_run(store, found, meter, Began(clock(), "", facts), tuning)
        view = _view(meter, tuning) if live else None
        result = _measured(command, found.environ, mask, meter, view, held, tuning, kept)
        result = replace(result, virtual=found.virtual)
        if kept is not None:
            from joulewise.cli import summary

            trouble = summary.keep(kept, result, clock())
            if result.tuned is not None:
                result = replace(result, tuned=replace(result.tuned, kept=result.tuned.kept and kept.journal_written))
            if trouble is None and talk(ctx).verbose:
                say(ctx, f"kept as run {kept.name}; 'joulewise history {kept.name}' tells it")
        _tell(ctx, _with_trouble(result, trouble), files)
    raise typer.Exit(result.exit_code)


def _aim(ctx: typer.Context, tune: bool, flags: Mapping[str, Any]) -> Wanted | None:
    """What is to be tuned for; None without ``--tune``. BadSpec for flags that need it, or make no sense; defaults from
    a file wait for it."""
    if not tune:
        given = [flag for flag, value in flags.items() if value is not None and not from_a_file(ctx, flag)]
        if given:
            raise BadSpec(f"{given[0]} is about tuning; add --tune, or leave it out")
        return None
    from joulewise.cli.objectives import Wanted

    return Wanted.of(
        flags["--objective"],
        flags["--max-slowdown"],
        eta=flags["--eta"],
        gpu_hour_price=flags["--gpu-hour-price"],
        kwh_price=flags["--kwh-price"],
        host_watts=flags["--host-watts"],
        power_budget=flags["--power-budget"],
        energy_budget=flags["--energy-budget"],
    )


def _tuning(
    found: OpenGpus,
    aim: Wanted,
    command: list[str],
    dry_run: bool,
    seed: int | None,
    store: Store | None,
    unix_s: float,
) -> Tuning:
    """What ``--tune`` asks for, to be entered."""
    from joulewise.cli.tuning import Tuning

    facts = {"unix_s": unix_s}
    return Tuning(found, aim, command, dry_run=dry_run, seed=seed, reason=_reason(command), store=store, facts=facts)


def _open_gpus(ctx: typer.Context, stack: ExitStack, spec: str | None, speed: float) -> OpenGpus:
    """The GPUs to measure; none, with the reason, where we were not told which and there are none."""
    try:
        found = stack.enter_context(opened(spec, speed=speed))
    except NoGpu as error:
        if spec is not None:
            raise
        found = OpenGpus.none(str(error))
    if talk(ctx).verbose:
        for each in found.gpus:
            say(ctx, f"measuring {each.info.index} {each.info.name} {each.info.uuid} ({found.why})")
    return found


def _refuse_without_host(why: str) -> None:
    """NoReading where the host cannot be measured either; ``why`` is what is wrong with the GPUs."""
    from joulewise.device.host import HostEnergy

    host = HostEnergy()
    if not host.zones:
        raise NoReading(f"nothing to measure with: {'; '.join(host.missing)}; {why}")


@contextmanager
def a_shells_exit_code(name: str) -> Iterator[None]:
    """A command that cannot be started is one line and the exit code that a shell gives."""
    try:
        yield
    except OSError as error:
        complain(why_not_started(name, error))
        raise typer.Exit(exit_code_of(error)) from None


def _view(meter: Meter, tuning: Tuning | None) -> LiveView | None:
    """The live view, where there is a terminal to show it on."""
    import sys

    from joulewise.cli.live import LiveView
    from joulewise.cli.panel import can_show

    return LiveView(meter, sys.stderr, tuning) if can_show(sys.stderr) else None


def _hold(found: OpenGpus, wanted: Setting, command: list[str]) -> Held:
    """What ``--set`` asks for, to be entered."""
    from joulewise.cli.held import Held

    return Held(found, wanted, reason=_reason(command))


def _reason(command: list[str]) -> str:
    """What a lease is for. Others may read it: the program, not its arguments."""
    program = "".join(letter if letter.isprintable() else "?" for letter in Path(command[0]).name)
    return f"joulewise run {program[:_PROGRAM_CHARACTERS]}"


def _measured(
    command: list[str],
    environ: Mapping[str, str],
    mask: set[int],
    meter: Meter,
    view: LiveView | None,
    held: Held | None,
    tuning: Tuning | None,
    kept: Keeping | None,
) -> Result:
    """Run the command and measure it. Exits with a shell's code when it cannot be started."""
    from joulewise.cli.summary import Result

    started = datetime.now(UTC).isoformat(timespec="seconds")
    if tuning:
        environ = tuning.environment(environ)
    meter.begin()
    start_s = time.monotonic()
    with a_shells_exit_code(command[0]):
        child = Child(command, environ, mask, while_stopped=view.put_away if view else nullcontext)
    if held:
        held.begin()
    if tuning:
        tuning.begin(meter)
    if kept:
        kept.begin()
    wait_s = view.refresh_s if view else _HELD_WAIT_S if held or tuning else _UNSEEN_WAIT_S
    with view or nullcontext():
        while (code := child.wait(wait_s)) is None:
            _say_news(held, tuning)
            if view:
                view.draw()
    duration_s = time.monotonic() - start_s
    if held:
        held.finish()
    if tuning:
        tuning.finish()
    ended = Outcome.REACHED if code == 0 else Outcome.STOPPED_EARLY if child.stopped_by else Outcome.FAILED
    gpus, host = meter.end(ended)
    if gpus and gpus[0].window_s is not None:
        duration_s = gpus[0].window_s
    _say_news(held, tuning)
    given_back = held.end(duration_s) if held else None
    tuned = tuning.end() if tuning else None
    return Result(tuple(command), code, started, duration_s, tuple(gpus), host, given_back, tuned)


def _say_news(held: Held | None, tuning: Tuning | None) -> None:
    """What has become of what was held meanwhile: the only lines that come between the command's own."""
    for line in (*(held.news() if held else ()), *(tuning.news() if tuning else ())):
        complain(line)


def _with_trouble(result: Result, trouble: str | None) -> Result:
    """``result`` with a line about what could not be kept; said at once where it has no place for one."""
    from joulewise.report.keeping import NOT_KEPT

    said = result.tuned.notes if result.tuned is not None else ()
    if trouble is None or any(note.startswith(NOT_KEPT) for note in said):
        return result
    if result.tuned is None:
        complain(trouble)
        return result
    return replace(result, tuned=replace(result.tuned, notes=(*result.tuned.notes, trouble)))


def _tell(ctx: typer.Context, result: Result, files: Outputs) -> None:
    """The result to the terminal and to where it was asked for. The command has ended: nothing here may fail it."""
    from joulewise.cli import summary

    if files.report is not None and result.tuned is not None:
        result = replace(result, tuned=_reported(result, result.tuned, files.report))
    if not talk(ctx).quiet:
        from joulewise.cli.console import Console

        console = Console(stderr=True)
        with suppress(OSError):  # whoever read our stderr has gone
            with console.capture() as captured:  # or a broken pipe would make the console end us
                summary.show(result, console)
            console.file.write(captured.get())
            console.file.flush()
    if files.json is not None:
        try:
            files.json.write(summary.as_json(result))
        except OSError as error:
            complain(f"--json {files.json.name} could not be written: {error.strerror}")
    if files.plot is not None:
        from joulewise.report.plot import draw

        series = [(f"{each.info.index} {each.info.name}", each.series) for each in result.gpus]
        subtitle = " · ".join(filter(None, (summary.command_line(result), summary.gpu_names(result))))
        try:
            draw(files.plot, series, title=summary.headline(result), subtitle=subtitle)
        except Exception as error:  # whatever a foreign library makes of it, the command's exit code is to be kept
            reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {str(error)[:200]}"
            complain(f"--plot {files.plot} could not be written: {reason}")


def _reported(result: Result, tuned: TuneResult, file: Path) -> TuneResult:
    """Write the report; what was tuned with its place, or as it was if it could not be written."""
    from joulewise.report.figures import Beyond
    from joulewise.report.page import page

    try:
        beyond = Beyond.of(tuned.story, [each.series for each in result.gpus], tuned.expected)
        title = None if tuned.untuned is None and tuned.advice is None else tuned.headline
        text = page(tuned.story, beyond, title=title, kept=tuned.kept)
        file.write_text(text, encoding="utf-8", errors="replace")
    except Exception as error:  # a report that fails is a line; the command's exit code is to be kept
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {str(error)[:200]}"
        complain(f"--report {file} could not be written: {reason}")
        return tuned
    return replace(tuned, report=str(file))
