"""What Slurm's commands print, as plain facts.

What it is: pure functions from the JSON of ``squeue`` and ``sinfo`` to ``SlurmJob`` and ``SlurmNode``. The JSON of
22.05 is what they were written against; where later versions are known to say the same thing in another form (numbers
as ``{"set": …, "number": …}``, states as lists) that is read too.

What it is not: a judge of whose a job is (``slurm_order``) or of what to do (``slurm_steps``).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from joulewise.cluster.engine import JobState, NodeState
from joulewise.core.errors import EngineLost

_JOB: Mapping[str, JobState] = {
    "PENDING": "waiting",
    "REQUEUED": "waiting",
    "REQUEUE_HOLD": "waiting",
    "REQUEUE_FED": "waiting",
    "SPECIAL_EXIT": "waiting",
    "RESV_DEL_HOLD": "waiting",
    "CONFIGURING": "starting",
    "RUNNING": "running",
    "SUSPENDED": "running",
    "STOPPED": "running",
    "SIGNALING": "running",
    "RESIZING": "running",
    "COMPLETING": "leaving",
    "STAGE_OUT": "leaving",
    "COMPLETED": "ended",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
    "FAILED": "failed",
    "TIMEOUT": "failed",
    "NODE_FAIL": "failed",
    "PREEMPTED": "failed",
    "BOOT_FAIL": "failed",
    "DEADLINE": "failed",
    "OUT_OF_MEMORY": "failed",
}
# Where a later version names several at once, the first of these is the one that counts.
_STRONGEST = ("COMPLETING", "CONFIGURING", "SUSPENDED")


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job as Slurm has it, ours or not. Times are seconds since 1970, None where Slurm has none."""

    id: int
    name: str
    partition: str
    word: str
    """Slurm's own word for its state."""
    state: JobState
    comment: str
    admin_comment: str
    place: Mapping[str, int]
    """Node → GPUs that it holds."""
    asked: Mapping[str, Any]
    """``nodes`` (count), ``required`` (names), ``gpus`` (a node): what it will start with."""
    held: bool
    held_by_user: bool
    restarts: int
    uid: int
    submit_s: float | None
    begin_s: float | None
    start_s: float | None
    end_s: float | None
    exit_code: int | None
    reason: str
    ran: bool = True
    """Whether its last start had come to nodes."""
    gid: int | None = None
    """The group that it runs as; None where Slurm does not say."""
    account: str = ""
    qos: str = ""

    @property
    def starts(self) -> int:
        """How often it has begun to run. One that leaves in order to wait is counted by Slurm as restarted already."""
        if self.state == "cancelled":
            return self.restarts + self.ran
        return self.restarts + (self.state != "waiting" and not (self.state == "leaving" and self.held))


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node as Slurm has it."""

    name: str
    state: NodeState
    gpus: int
    kind: str
    partitions: tuple[str, ...]
    why: str
    words: frozenset[str] = field(default_factory=frozenset)


def jobs(answer: Mapping[str, Any]) -> list[SlurmJob]:
    """The jobs in what ``squeue --json`` says, in order of their ids."""
    return sorted((_job(each) for each in _listed(answer, "jobs")), key=lambda job: job.id)


def nodes(answer: Mapping[str, Any]) -> list[SlurmNode]:
    """The nodes in what ``sinfo --json`` says, in Slurm's order."""
    return [_node(each) for each in _listed(answer, "nodes")]


SACCT = "JobIDRaw,JobName,Partition,State,ExitCode,Submit,Start,End,UID,Comment,AdminComment"
"""The columns that ``past`` reads."""


def past(text: str, between: str) -> list[SlurmJob]:
    """Jobs from what ``sacct -X -n -P`` says with the columns ``SACCT``, times as seconds (SLURM_TIME_FORMAT=%s).

    ``between`` stands between the columns. sacct prints names and comments as their users wrote them, line ends too:
    only a text that no user can know keeps them from writing rows of their own. A row that is none is left out.
    """
    found = []
    for line in text.split("\n"):  # and not at all that Unicode calls a line's end
        columns = line.split(between)
        if len(columns) != SACCT.count(",") + 1:
            continue
        try:
            found.append(_past(*columns))
        except (ValueError, IndexError):
            continue
    return found


def _past(
    number: str,
    name: str,
    partition: str,
    words: str,
    code: str,
    submit: str,
    start: str,
    end: str,
    uid: str,
    comment: str,
    admin_comment: str,
) -> SlurmJob:
    word = words.split()[0].upper()  # "CANCELLED by 1000"
    own, _, signal = code.partition(":")
    return SlurmJob(
        id=int(number),
        name=name,
        partition=partition,
        word=word,
        state=_JOB.get(word, "waiting"),
        comment=comment,
        admin_comment=admin_comment,
        place={},
        asked={"nodes": None, "required": (), "gpus": 0},
        held=False,
        held_by_user=False,
        restarts=0,
        uid=int(uid),  # one without a user is nobody's, and must not pass for root's
        submit_s=float(submit) if submit.isdecimal() else None,
        begin_s=None,
        start_s=float(start) if start.isdecimal() else None,
        end_s=float(end) if end.isdecimal() else None,
        exit_code=128 + int(signal) if signal not in ("", "0") else int(own or 0),
        reason=words,
    )


def hostnames(text: str) -> list[str]:
    """``"n[1-3,07],m"`` → n1, n2, n3, n07, m."""
    found: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        pieces = [list(_ranged(piece)) for piece in re.split(r"(\[[^\]]*\])", part) if piece]
        found += ["".join(each) for each in itertools.product(*pieces)]
    return found


def gpus(text: str) -> tuple[int, str]:
    """How many GPUs a text of Slurm names (``"gpu:a100:4(IDX:0-3)"``, ``"gres:gpu:2"``), and of what kind."""
    count, kind = 0, ""
    for each in re.split(r",(?![^(]*\))", text):
        word = re.fullmatch(r"(?:gres[:/])?gpu(?::([^:=()]*[^:=()\d][^:=()]*))?(?:[:=](\d+))?(?:\(.*\))?", each.strip())
        if word:
            count += int(word[2] or 1)
            kind = kind or word[1] or ""
    return count, kind


def _ranged(piece: str) -> Iterator[str]:
    if not piece.startswith("["):
        yield piece
        return
    for each in piece[1:-1].split(","):
        low, dash, high = each.partition("-")
        if dash:
            for number in range(int(low), int(high) + 1):
                yield str(number).zfill(len(low))
        else:
            yield each


def _listed(answer: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = answer.get(key)
    if not isinstance(found, list):
        raise EngineLost(f"Slurm's JSON has no list {key!r}: it is of a version that is not known here (22.05 is)")
    return found


def _job(said: Mapping[str, Any]) -> SlurmJob:
    try:
        word = _word(said["job_state"])
        state = _JOB.get(word, "waiting")
        per_node, _ = gpus(str(said.get("tres_per_node") or ""))
        reason = str(said.get("state_reason") or "")
        # What a job that was cancelled last waited for ("Prolog", "Resources") is not why it was cancelled.
        waits_for = "" if reason == "None" or state == "cancelled" else reason
        return SlurmJob(
            id=int(said["job_id"]),
            name=str(said.get("name") or ""),
            partition=str(said.get("partition") or ""),
            word=word,
            state=state,
            comment=_comment(said, "job", "comment"),
            admin_comment=_comment(said, "administrator", "admin_comment"),
            place=_place(said, per_node) if state in ("starting", "running", "leaving") else {},
            asked={
                "nodes": _number(said.get("node_count")),
                "required": tuple(hostnames(str(said.get("required_nodes") or ""))),
                "gpus": per_node,
            },
            # A priority of 0 is what a hold is; its reason says whose.
            held=_number(said.get("priority")) == 0,
            held_by_user=reason == "JobHeldUser",
            restarts=_number(said.get("restart_cnt")) or 0,
            uid=int(said["user_id"]),  # a job without one must not pass for root's
            submit_s=_time(said.get("submit_time")),
            begin_s=_time(said.get("eligible_time")),
            start_s=_time(said.get("start_time")),
            end_s=_time(said.get("end_time")),
            exit_code=_exit_code(said.get("exit_code")),
            ran=str(said.get("nodes") or "") not in ("", "None assigned"),
            gid=_number(said.get("group_id")),
            account=str(said.get("account") or ""),
            qos=str(said.get("qos") or ""),
            reason="" if reason == "None" else str(said.get("state_description") or "") or waits_for,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        raise EngineLost(
            f"Slurm's JSON of a job is not as known here ({type(fault).__name__}: {fault}); 22.05 was tested"
        ) from fault


def _place(said: Mapping[str, Any], per_node: int) -> dict[str, int]:
    names = hostnames(str(said.get("nodes") or ""))
    held = [gpus(str(each))[0] for each in said.get("gres_detail") or ()]
    # While it leaves Slurm shows no detail any more, but the nodes that are not free yet.
    counts = held if len(held) == len(names) else [per_node] * len(names)
    return {name: count for name, count in zip(names, counts, strict=True) if count}


def _node(said: Mapping[str, Any]) -> SlurmNode:
    try:
        states = said["state"]
        words = {str(each).upper() for each in ([states] if isinstance(states, str) else states)}
        words |= {str(each).upper() for each in said.get("state_flags") or ()}
        count, kind = gpus(str(said.get("gres") or ""))
        state = _node_state(words)
        why = str(said.get("reason") or "")
        if state == "down" and not why:
            why = "does not respond" if "NOT_RESPONDING" in words else " ".join(sorted(words)).lower()
        return SlurmNode(
            str(said["name"]),
            state,
            count,
            kind or "gpu",
            tuple(str(each) for each in said.get("partitions") or ()),
            why if state == "down" else "",
            frozenset(words),
        )
    except (KeyError, TypeError, ValueError) as fault:
        raise EngineLost(
            f"Slurm's JSON of a node is not as known here ({type(fault).__name__}: {fault}); 22.05 was tested"
        ) from fault


def _node_state(words: set[str]) -> NodeState:
    if words & {"POWERING_UP", "POWER_UP", "REBOOT_ISSUED"}:
        return "booting"
    if words & {"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"}:
        return "off"
    if words & {"DOWN", "DRAIN", "FAIL", "ERROR", "UNKNOWN", "FUTURE", "INVALID", "INVALID_REG", "NOT_RESPONDING"}:
        return "down"
    return "up"


def _word(said: Any) -> str:
    words = [said] if isinstance(said, str) else [str(each) for each in said]
    return next((word for word in _STRONGEST if word in words), words[0].split()[0].upper())


def _number(said: Any) -> int | None:
    """A number as 22.05 writes it, or as later versions do."""
    if isinstance(said, Mapping):
        return int(said["number"]) if said.get("set") and not said.get("infinite") else None
    return None if said is None else int(said)


def _comment(said: Mapping[str, Any], whose: str, key: str) -> str:
    together = said.get("comment")  # later versions: {"administrator": …, "job": …, "system": …}
    return str((together.get(whose) if isinstance(together, Mapping) else said.get(key)) or "")


def _time(said: Any) -> float | None:
    number = _number(said)
    return float(number) if number else None


def _exit_code(said: Any) -> int | None:
    """As a shell has it: the script's own, or 128 and the number of the signal that ended it."""
    if isinstance(said, Mapping):
        signal = _number((said.get("signal") or {}).get("id") or (said.get("signal") or {}).get("signal_id")) or 0
        return 128 + signal if signal else _number(said.get("return_code"))
    if said is None:
        return None
    status = int(said)  # as wait(2) has it
    return 128 + (status & 0x7F) if status & 0x7F else status >> 8
