"""``joulewise restore``: put back what leases had set, for admins, a Slurm epilog and the unit's ExecStopPost.

With the daemon dead, what it or any other dead process owed is given back from the files they left. With the daemon
alive the leases are its own, and it is asked to end them. Doing it twice does nothing the second time.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from joulewise.cli import FAILED, complain, records, talk
from joulewise.cli.gpus import uuids
from joulewise.cli.leases import Socket, State
from joulewise.core.errors import BadSpec, NoDaemon
from joulewise.daemon import grants, site
from joulewise.daemon.claims import held_for
from joulewise.daemon.grants import GRANTS, Grant
from joulewise.daemon.policy import Policy
from joulewise.daemon.rights import ROOT
from joulewise.daemon.site import SITE
from joulewise.device.lease import Ending, Restored
from joulewise.device.remote_client import DaemonClient
from joulewise.device.saved import STATE
from joulewise.device.wire_values import to_restored
from joulewise.report import knobs

OWED = "owed"
"""The stage of what a process before the daemon owed and it could not give back yet, in its list of leases."""


@dataclass(slots=True)
class Outcome:
    """What was done. ``held`` is GPU → who, for what a living process still has."""

    restored: list[Restored] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)
    pending: dict[str, str] = field(default_factory=dict)
    """Lease, or GPUs → why it has not come back yet."""
    listed: set[str] = field(default_factory=set)
    """GPUs that the daemon itself says are pending."""
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
    gpu: Annotated[
        list[str] | None, typer.Option(metavar="SPEC", help="Only these: GPU-… or nvml:0-3. Repeatable.")
    ] = None,
    job: Annotated[
        str | None, typer.Option(help="Take this job's grants back, and restore the GPUs that it had.")
    ] = None,
    forget: Annotated[
        str | None,
        typer.Option(metavar="GPU-…", help="Restore nothing: drop what is kept of a GPU that is gone for good."),
    ] = None,
    state: State = STATE,
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

    If the daemon lives it is asked to end the leases. What is in the files of
    processes that are gone is undone, with the daemon alive or dead. A lease
    that root holds without the daemon is left to its living process.

      joulewise restore
      joulewise restore --gpu nvml:0 --json
      joulewise restore --job $SLURM_JOB_ID        # in a Slurm epilog
      joulewise restore --forget GPU-3f2a          # a card that was taken out

    Exit code 0 if all is back, or there was nothing to do; 1 if something
    could not be put back, or what was named is in other hands.
    """
    if forget is not None:
        if gpu or job is not None:
            raise BadSpec("--forget goes alone: it drops what is kept of one GPU, and restores nothing")
        from joulewise.cli.forget import forget as drop

        drop(state, forget, as_json=as_json)
        return
    wanted = frozenset(_uuids(gpu, state)) if gpu else None
    outcome = Outcome()
    given = () if job is None else _of(directory, job)
    try:
        with DaemonClient(socket) as daemon:
            outcome.daemon = True
            before = daemon.leases() if given else []
            outcome.removed = _removed(directory, job)
            _ask(daemon, outcome, wanted, None if job is None else given, before, job)
    except NoDaemon as error:
        if outcome.daemon:
            raise
        outcome.removed = _removed(directory, job)
        _repair(state, _policy(rules), outcome, _of_job(given, wanted), str(error))
    else:
        only = wanted if job is None else (wanted or frozenset()) | _granted(given)
        _repair_beside(state, _policy(rules), outcome, only)
    if as_json:
        typer.echo(json.dumps(outcome.as_json()))
    else:
        _tell(outcome, quiet=talk(ctx).quiet, named=gpu is not None or job is not None)
    named = gpu is not None or job is not None
    if outcome.failed or (named and outcome.held):
        raise typer.Exit(FAILED)


def _uuids(specs: Iterable[str], state: Path) -> list[str]:
    """The GPUs that ``specs`` name: this machine's, or such as it had once and of which something is kept."""
    kept = records.records(state)
    found: list[str] = []
    for spec in specs:
        word = spec.removeprefix("nvml:")
        gone = records.named(kept, word) if word.startswith("GPU-") else []
        found += [record.uuid for record in gone] if len(gone) == 1 else uuids([spec])
    return found


def _of(directory: Path, job: str) -> tuple[Grant, ...]:
    """The job's grants."""
    grants.valid_name(job, "--job")
    return tuple(grant for grant in grants.read(directory)[0] if grant.job == job)


def _removed(directory: Path, job: str | None) -> tuple[Grant, ...]:
    """The job's grants, taken back; what cannot be read there is said."""
    if job is None:
        return ()
    taken = grants.remove(directory, job=job)
    for problem in grants.read(directory)[1]:
        complain(problem)
    return taken


def _granted(given: Iterable[Grant]) -> frozenset[str]:
    return frozenset(uuid for grant in given for uuid in grant.gpus)


def _of_job(given: Collection[Grant], wanted: frozenset[str] | None) -> frozenset[str] | None:
    """The GPUs to look at: those named, those of the job; all where neither is known, since no owner lives."""
    granted = _granted(given)
    return wanted | granted if wanted is not None else granted or None


def _policy(path: Path) -> Policy:
    """The site's rules. A fault in them must not keep anything from being put back: then without them."""
    try:
        return site.load(path)
    except BadSpec as error:
        complain(f"the site's baseline is not known, clocks are unlocked instead: {error}")
        return Policy()


def _ask(
    daemon: DaemonClient,
    outcome: Outcome,
    wanted: frozenset[str] | None,
    given: Collection[Grant] | None,
    before: Iterable[Mapping[str, Any]],
    job: str | None,
) -> None:
    """Let a living daemon end leases: all, or those on ``wanted`` GPUs, or (not None) those by right of ``given`` and
    the one that the node's agent holds for ``job``.

    ``before`` is its list from when the grants were there still: what a lease rests on may have changed since. An agent
    that takes its lease only now finds the claim gone, and writes nothing.
    """
    agents = frozenset({ROOT, int(daemon.hello["uid"])})
    rested = {lease["lease"] for lease in before if any(_rests_on(lease, grant) for grant in given or ())}
    for lease in daemon.leases():
        of_job = given is not None and (
            lease["lease"] in rested
            or any(_rests_on(lease, grant) for grant in given)
            or (job is not None and lease["uid"] in agents and lease["reason"] == held_for(job))
            or (lease["stage"] == OWED and not _granted(given).isdisjoint(lease["gpus"]))
        )
        named = wanted is not None and not wanted.isdisjoint(lease["gpus"])
        if not (of_job or named or (wanted is None and given is None)):
            continue
        if lease["stage"] == OWED:
            why, what = str(lease.get("why", "")), ", ".join(lease["gpus"])
            if "joulewise restore -" in why:  # not the daemon's to mend, and it says how it is
                outcome.pending[what] = why
            else:
                why = why.partition("; ")[0]
                outcome.pending[what] = f"not back yet, the daemon goes on trying{': ' + why if why else ''}"
            outcome.listed.update(lease["gpus"])
            continue
        try:
            outcome.restored += map(to_restored, daemon.end(lease["lease"], "joulewise restore"))
        except NoDaemon:  # it does not answer before everything is back, and this may take it longer than us
            outcome.pending[lease["lease"]] = "the daemon has not given it back yet, and goes on trying"
            return


def _rests_on(lease: Mapping[str, Any], grant: Grant) -> bool:
    """Whether a lease, as the daemon lists it, has its right from ``grant``, on any of its GPUs."""
    return lease["uid"] == grant.uid and grant.name in lease.get("grants", ())


def _repair(state: Path, policy: Policy, outcome: Outcome, wanted: frozenset[str] | None, no_daemon: str) -> None:
    """Without a daemon: from the files."""
    from joulewise.daemon.repair import repair

    if not records.can_see(state):
        raise records.not_ours(state)
    outcome.restored = repair(state, gpus=wanted, policy=policy, on_held=outcome.held.__setitem__)
    if outcome.held:
        complain(no_daemon)  # or the holder may be one that hangs


def _repair_beside(state: Path, policy: Policy, outcome: Outcome, wanted: frozenset[str] | None) -> None:
    """Beside a living daemon: what it does not keep, such as the files of GPUs that it does not see."""
    from joulewise.daemon.repair import repair

    kept = {record.uuid: record for record in records.records(state) if wanted is None or record.uuid in wanted}
    told = {uuid for uuid in outcome.listed if uuid in kept and kept[uuid].unknown}  # nothing more is to be said
    owed = frozenset(uuid for uuid, record in kept.items() if record.owed) - told
    if owed:
        # Who holds one by now is the daemon, which has just found the GPU: then it is its business.
        given = repair(state, gpus=owed, policy=policy, on_held=lambda *_: None)
        outcome.restored += given
        failed = {each.gpu for each in given if each.ending is Ending.FAILED}
        for uuid in {each.gpu for each in given} - failed:
            outcome.pending.pop(uuid, None)  # it was for us to give back, from a folder that is not the daemon's
    for uuid, record in kept.items():
        if record.local:
            outcome.held[uuid] = f"{uuid} is in the hands of pid {record.keeper}, without the daemon; end that"


def _tell(outcome: Outcome, *, quiet: bool, named: bool) -> None:
    """Data to stdout, trouble to stderr."""
    lines = knobs.restored_lines(outcome.restored, gpus=0)
    for line, trouble in lines:
        if trouble:
            complain(line)
        elif not quiet:
            typer.echo(line)
    for uuid, who in outcome.held.items():
        complain(who if uuid in who else f"{uuid}: {who}")
    for what, why in outcome.pending.items():
        complain(f"{what}: {why.replace(what, 'it')}")  # its name once
    failed = [each for each in outcome.restored if each.ending is Ending.FAILED]
    for uuid in dict.fromkeys(each.gpu for each in failed if "joulewise restore -" not in each.why):
        complain(f"if that GPU is gone for good, 'joulewise restore --forget {uuid}' drops what is kept of it")
    if not quiet and not lines and not outcome.held and not outcome.pending:
        held = "the daemon holds no such lease" if named else "no lease is held"
        typer.echo("nothing to restore" + (f"; {held}" if outcome.daemon else ""))
