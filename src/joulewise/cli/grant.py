"""``joulewise grant``: give one user the right to set some GPUs for a while, see who has it, take it back.

Root's, by hand or from a scheduler's prolog. It writes the files that the daemon reads, so it works whether the daemon
runs or not. A grant always ends.
"""

from __future__ import annotations

import json
import pwd
import re
import secrets
import time
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from joulewise.cli import FAILED, complain, say, talk
from joulewise.cli.gpus import uuids
from joulewise.cli.help import VerbFamily
from joulewise.cli.records import can_see
from joulewise.core.errors import BadSpec, JoulewiseError, NotPermitted
from joulewise.core.units import format_duration
from joulewise.daemon import grants, site
from joulewise.daemon.grants import GRANTS, Grant
from joulewise.daemon.policy import ANY, Bound, Range

app = VerbFamily(
    help="The right to set GPUs, given to one user for a while.\n\n"
    "  joulewise grant add --uid alice --gpu nvml:0-3 --for 2h\n"
    "  joulewise grant list\n"
    "  joulewise grant remove --job 123",
)

Directory = Annotated[Path, typer.Option("--grants", metavar="DIR", readable=False, help="Where grants are kept.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]

_OPEN = 1e6  # above what any hardware has
_CLAIM_S = 30 * 86400.0  # an epilog takes it back; it ends by itself only where that was lost
_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


@app.command("add")
def add(
    ctx: typer.Context,
    uid: Annotated[str, typer.Option(metavar="USER", help="The user: a number, or a name.")],
    gpu: Annotated[
        list[str],
        typer.Option(metavar="SPEC", help="GPU-… or nvml:0-3; bare numbers (0,2-3) are the driver's. Repeatable."),
    ],
    lasting: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long: 90s, 30m, 2h, 1d. Default: the site's, 1d.")
    ] = None,
    job: Annotated[str | None, typer.Option(help="The scheduler's job, for 'remove --job'.")] = None,
    cgroup: Annotated[
        str | None, typer.Option(help="Only for processes in this control group or below. Default: all of the user's.")
    ] = None,
    knob: Annotated[
        list[str] | None,
        typer.Option(metavar="KNOB", help="Or KNOB=LOW..HIGH. Repeatable. Default: what the site gives to grants."),
    ] = None,
    shared: Annotated[
        bool, typer.Option("--shared", help="Holds too while other users' processes run on the GPU, and hits them.")
    ] = False,
    claim: Annotated[
        bool,
        typer.Option(
            "--claim",
            help="Give nothing: say whose GPUs these are, for a cluster's agent. Needs --job; lasts 30d unless --for.",
        ),
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="What to call it; one of that name is replaced. Default: from job and user.")
    ] = None,
    directory: Directory = GRANTS,
    as_json: AsJson = False,
) -> None:
    """Give a user the right to set GPUs, until it ends or is taken back.

      joulewise grant add --uid alice --gpu nvml:0 --for 2h
      joulewise grant add --uid 1000 --gpu nvml:0-3 --knob power_limit_w=300..700

    In a Slurm prolog; with --claim where the cluster's scheduler sets the clocks, and not the job:

      joulewise grant add --uid $SLURM_JOB_UID --gpu nvml:$SLURM_JOB_GPUS \\
          --job $SLURM_JOB_ID
    """
    if claim and (job is None or knob or shared):
        raise BadSpec("--claim gives nothing, so it goes without --knob and --shared; and it needs the --job it is for")
    user = _user(uid)
    if not name:
        name = f"job-{job}-uid-{user}" if job else f"uid-{user}-{secrets.token_hex(4)}"
    unless_said_s = _CLAIM_S if claim else site.load().grant_for_s
    lasting_s = unless_said_s if lasting is None else _seconds(lasting)
    made = Grant.of(
        {
            "name": name,
            "uid": user,
            "gpus": uuids(gpu),
            "cgroup": cgroup,
            "knobs": {} if claim else None if not knob else _ranges(knob),
            "expires_unix_s": time.time() + lasting_s,
            "job": job,
            "shared": shared,
        },
        "grant",
    )
    grants.add(directory, made)
    if as_json:
        typer.echo(json.dumps(_as_json(made)))
    elif not talk(ctx).quiet:
        typer.echo(f"{made.name}: {_in_words(made)}")
    if others := _others(directory, made):
        them = "another grant" if len(others) == 1 else f"{len(others)} other grants"
        say(
            ctx,
            f"uid {made.uid} has {them} on these GPUs ({', '.join(others)}), which stay; see 'joulewise grant list'",
        )
    for warning in _beyond(made):
        complain(warning)


@app.command("list")
def list_grants(directory: Directory = GRANTS, as_json: AsJson = False) -> None:
    """List who may set what, until when; exit 1 if a file there is not believed.

    joulewise grant list --json
    """
    if not can_see(directory):
        raise NotPermitted(
            f"grants in {directory} are root's to see; use 'sudo', or 'joulewise doctor' for what you yourself may set"
        )
    found, problems = grants.read(directory)
    now = time.time()
    if as_json:
        typer.echo(json.dumps({"grants": [_as_json(each) for each in found], "problems": problems}))
    else:
        for each in found:
            typer.echo(f"{each.name}: {_in_words(each) if each.expires_unix_s > now else 'has ended'}")
        if not found and not problems:
            typer.echo(f"no grants in {directory}")
        for problem in problems:
            complain(problem)
    if problems:
        raise typer.Exit(FAILED)


@app.command("remove")
def remove(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(help="The grant's name, as 'add' and 'list' show it.")] = None,
    job: Annotated[str | None, typer.Option(help="All grants of this job instead.")] = None,
    directory: Directory = GRANTS,
    as_json: AsJson = False,
) -> None:
    """Take a right back. Leases that rest on it end, and their GPUs are restored.

    That is done when the daemon looks next: within poll_s of the site file,
    1 s by default. 'joulewise restore --job' removes too, and waits for it.

    joulewise grant remove --job 123        # nothing to remove is no fault
    """
    if (name is None) == (job is None):
        raise BadSpec("say which: 'joulewise grant remove NAME' or 'joulewise grant remove --job JOB'")
    taken = grants.remove(directory, name=name, job=job)
    if name is not None and not taken:
        raise BadSpec(f"no grant is called {name!r} in {directory}; see 'joulewise grant list'")
    if as_json:
        typer.echo(json.dumps({"removed": [_as_json(each) for each in taken]}))
    else:
        say(ctx, f"removed {', '.join(each.name for each in taken) or 'nothing'}")


def _others(directory: Path, made: Grant) -> list[str]:
    """Live grants of the same user on the same GPUs: a second one adds to the first and does not replace it."""
    now = time.time()
    return [
        each.name
        for each in grants.read(directory)[0]
        if each.uid == made.uid
        and each.name != made.name
        and each.expires_unix_s > now
        and not set(made.gpus).isdisjoint(each.gpus)
    ]


def _beyond(made: Grant) -> list[str]:
    """What of the grant no hardware here can do. Nothing where the driver cannot be asked: the GPUs may come later."""
    if made.knobs is None:
        return []
    from joulewise.device.discover import listed

    try:
        spaces = {gpu.info.uuid: gpu.info.space.knobs for gpu in listed()[0]}
    except JoulewiseError:
        return []
    warnings: dict[str, list[str]] = {}
    for uuid in made.gpus:
        for knob, (low, high) in made.knobs.items() if uuid in spaces else ():
            choices = spaces[uuid].get(knob)
            if choices is None:
                warnings.setdefault(f"{knob} cannot be set there", []).append(uuid)
            elif low > choices.high or high < choices.low:
                beyond = (
                    f"{knob} {low:g} to {high:g} gives nothing, since it goes from {choices.low:g} to {choices.high:g}"
                )
                warnings.setdefault(beyond, []).append(uuid)
            elif (low and low < choices.low) or (high < _OPEN and high > choices.high):
                within = f"{max(low, choices.low):g} to {min(high, choices.high):g}"
                warnings.setdefault(f"of {knob} {low:g} to {high:g} it gives {within}, all there is", []).append(uuid)
    return [f"{', '.join(where)}: {what}" for what, where in warnings.items()]


def _user(text: str) -> int:
    """A user's number, from a number or a name."""
    if re.fullmatch(r"\d{1,10}", text):
        return int(text)
    try:
        return pwd.getpwnam(text).pw_uid
    except (KeyError, ValueError):
        raise BadSpec(f"--uid {text}: nobody here is called so; give the number, or correct the name") from None


def _seconds(text: str) -> float:
    """How long: a number with a unit, seconds without one."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)\s*([smhd]?)", text.strip())
    lasting_s = float(match.group(1)) * _UNITS_S[match.group(2)] if match else 0.0
    if lasting_s <= 0:
        raise BadSpec(f"--for {text!r} is no time; write 90s, 30m, 2h or 1d")
    return lasting_s


def _ranges(words: list[str]) -> dict[str, tuple[float, float]]:
    """``["power_limit_w=200..600"]`` as ranges; what makes no sense in them is the grant's to refuse."""
    ranges: dict[str, tuple[float, float]] = {}
    for word in words:
        knob, equals, span = (part.strip() for part in word.partition("="))
        low, dots, high = (part.strip() for part in span.partition(".."))
        if knob in ranges:
            raise BadSpec(f"--knob names {knob} twice; say it once")
        try:
            if equals and not dots:
                raise ValueError
            # Without a range, or with an open end: all that the hardware has, which stands around every grant.
            ranges[knob] = (float(low or 0), float(high or _OPEN))
        except ValueError:
            raise BadSpec(f"--knob {word!r} is no KNOB=LOW..HIGH; write '--knob power_limit_w=200..600'") from None
    return ranges


def _in_words(grant: Grant) -> str:
    left_s = grant.expires_unix_s - time.time()
    until = datetime.fromtimestamp(grant.expires_unix_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    knobs = f"what the site gives to grants ({_site_gives()})"
    if grant.knobs is not None:
        knobs = ", ".join(f"{knob} {_span(low, high)}" for knob, (low, high) in grant.knobs.items()) or "nothing"
    where = f" from inside {grant.cgroup}" if grant.cgroup else ""
    shared = ", shared or not," if grant.shared else ""
    gpus = ", ".join(grant.gpus)
    if grant.claims:
        return (
            f"job {grant.job} of uid {grant.uid} has {gpus} until {until} ({format_duration(left_s)}), to set nothing"
        )
    return f"uid {grant.uid}{where} may set {knobs} on {gpus}{shared} until {until} ({format_duration(left_s)})"


def _site_gives() -> str:
    """The ranges of a grant that names none, as the site's file has them."""
    try:
        given = site.load().granted
    except BadSpec:
        return "its file cannot be read"
    return ", ".join(f"{knob} {_range(each)}" for knob, each in given.items() if each is not None) or "nothing"


def _range(given: Range) -> str:
    """As the site's file writes it: ``"50% to max"``, ``"any"``."""

    def end(bound: Bound, name: str) -> str:
        return f"{bound.share:.0%}" if bound.share is not None else name if bound.value is None else f"{bound.value:g}"

    return "any" if given == ANY else f"{end(given.low, 'min')} to {end(given.high, 'max')}"


def _span(low: float, high: float) -> str:
    """``"200 to 600"``; an open end by its name."""
    if high >= _OPEN:
        return "without bounds" if not low else f"from {low:g} on"
    return f"{low:g} to {high:g}"


def _as_json(grant: Grant) -> dict[str, Any]:
    return asdict(grant)
