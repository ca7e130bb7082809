"""``joulewise restore``: put back what leases had set, for admins, a Slurm epilog and the unit's ExecStopPost.

With the daemon dead, what it or any other dead process owed is given back from the files they left. With the daemon
alive the leases are its own, and it is asked to end them. Doing it twice does nothing the second time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from joulewise.cli import FAILED, complain, knobs, talk
from joulewise.cli.gpus import uuids
from joulewise.cli.leases import Socket
from joulewise.core.errors import BadSpec, NoDaemon, NotPermitted
from joulewise.daemon import grants, site
from joulewise.daemon.grants import GRANTS, Grant
from joulewise.daemon.policy import Policy
from joulewise.daemon.site import SITE
from joulewise.device.lease import Ending, Restored
from joulewise.device.remote_client import DaemonClient
from joulewise.device.saved import STATE
from joulewise.device.wire_values import to_restored


@dataclass(slots=True)
class Outcome:
    """What was done. ``held`` is GPU → who, for what a living process still has."""

    restored: list[Restored] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)
    pending: dict[str, str] = field(default_factory=dict)
    """Lease → why it has not come back yet."""
    removed: tuple[Grant, ...] = ()
    daemon: bool = False
    """Whether a daemon lives and was asked."""

    @property
    def failed(self) -> bool:
        """Whether something is left as a lease had set it."""
        return bool(self.pending) or any(each.ending is Ending.FAILED for each in self.restored)

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "daemon": self.daemon,
            "restored": [{**asdict(each), "ending": each.ending.value} for each in self.restored],
            "held": self.held,
            "pending": self.pending,
            "removed_grants": [each.name for each in self.removed],
        }


def restore(
    ctx: typer.Context,
    gpu: Annotated[list[str] | None, typer.Option(help="Only these: GPU-… or nvml:0-3. Repeatable.")] = None,
    job: Annotated[
        str | None, typer.Option(help="Take this job's grants back, and restore the GPUs that it had.")
    ] = None,
    state: Annotated[
        Path, typer.Option(metavar="DIR", readable=False, help="Where leases keep what was there.")
    ] = STATE,
    directory: Annotated[
        Path, typer.Option("--grants", metavar="DIR", readable=False, help="Where grants are kept.")
    ] = GRANTS,
    rules: Annotated[
        Path, typer.Option("--site", metavar="FILE", readable=False, help="The site's rules, for its baseline.")
    ] = SITE,
    socket: Socket = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Put back what leases had set. As root.

    If the daemon lives it is asked to end the leases; if it is dead, what it
    left in its files is undone. A lease that root holds without the daemon
    is left to its living process.

      joulewise restore
      joulewise restore --gpu nvml:0 --json
      joulewise restore --job $SLURM_JOB_ID        in a Slurm epilog

    Exit code 0 if all is back, or there was nothing to do; 1 if something
    could not be put back, or what was named is in other hands.
    """
    wanted = frozenset(uuids(gpu)) if gpu else None
    outcome = Outcome()
    if job is not None:
        outcome.removed = _removed(directory, job)
    try:
        with DaemonClient(socket) as daemon:
            outcome.daemon = True
            _ask(daemon, outcome, wanted, None if job is None else outcome.removed)
    except NoDaemon as error:
        if outcome.daemon:
            raise
        _repair(state, _policy(rules), outcome, _of_job(outcome.removed, wanted), str(error))
    if as_json:
        typer.echo(json.dumps(outcome.as_json()))
    else:
        _tell(outcome, quiet=talk(ctx).quiet)
    named = gpu is not None or job is not None
    if outcome.failed or (named and outcome.held):
        raise typer.Exit(FAILED)


def _removed(directory: Path, job: str) -> tuple[Grant, ...]:
    """The job's grants, taken back; what cannot be read there is said."""
    taken = grants.remove(directory, job=grants.valid_name(job, "--job"))
    for problem in grants.read(directory)[1]:
        complain(problem)
    return taken


def _of_job(removed: Collection[Grant], wanted: frozenset[str] | None) -> frozenset[str] | None:
    """The GPUs to look at: those named, those of the job; all where neither is known, since no owner lives."""
    granted = frozenset(uuid for grant in removed for uuid in grant.gpus)
    return wanted | granted if wanted is not None else granted or None


def _policy(path: Path) -> Policy:
    """The site's rules. A fault in them must not keep anything from being put back: then without them."""
    try:
        return site.load(path)
    except BadSpec as error:
        complain(f"the site's baseline is not known, clocks are unlocked instead: {error}")
        return Policy()


def _ask(
    daemon: DaemonClient, outcome: Outcome, wanted: frozenset[str] | None, removed: Collection[Grant] | None
) -> None:
    """Let a living daemon end leases: all, or those on ``wanted`` GPUs, or (not None) those resting on ``removed``."""
    for lease in daemon.leases():
        of_job = removed is not None and any(_rests_on(lease, grant) for grant in removed)
        named = wanted is not None and not wanted.isdisjoint(lease["gpus"])
        if not (of_job or named or (wanted is None and removed is None)):
            continue
        try:
            outcome.restored += map(to_restored, daemon.end(lease["lease"], "joulewise restore"))
        except NoDaemon:  # it does not answer before everything is back, and this may take it longer than us
            outcome.pending[lease["lease"]] = "the daemon has not given it back yet, and goes on trying"
            return


def _rests_on(lease: Mapping[str, Any], grant: Grant) -> bool:
    """Whether a lease, as the daemon lists it, has its right from ``grant``."""
    return lease["uid"] == grant.uid and f"grant {grant.name}" in str(lease.get("because", "")).split(", ")


def _repair(state: Path, policy: Policy, outcome: Outcome, wanted: frozenset[str] | None, no_daemon: str) -> None:
    """Without a daemon: from the files."""
    from joulewise.daemon.repair import repair

    if state.exists() and not os.access(state, os.R_OK | os.X_OK):
        raise NotPermitted(f"what leases had set is kept in {state}, which only root may read; use 'sudo'")
    outcome.restored = repair(state, gpus=wanted, policy=policy, on_held=outcome.held.__setitem__)
    if outcome.held:
        complain(no_daemon)  # or the holder may be one that hangs


def _tell(outcome: Outcome, *, quiet: bool) -> None:
    """Data to stdout, trouble to stderr."""
    lines = knobs.restored_lines(outcome.restored, gpus=0)
    for line, trouble in lines:
        if trouble:
            complain(line)
        elif not quiet:
            typer.echo(line)
    for uuid, who in outcome.held.items():
        complain(who if uuid in who else f"{uuid}: {who}")
    for lease, why in outcome.pending.items():
        complain(f"{lease}: {why}")
    if not quiet and not lines and not outcome.held and not outcome.pending:
        typer.echo("nothing to restore" + ("; the daemon holds no such lease" if outcome.daemon else ""))
