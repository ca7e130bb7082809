"""What the files of the state folder say, read without taking them: who set what, who keeps it, what nobody does.

For ``doctor``, ``leases``, ``restore`` and ``stand``, which look and must not be in anybody's way: no lock is taken, so
what is said was so a moment ago. Root's to read. Nothing is given back here; ``daemon/repair`` does that.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joulewise.core.errors import BadSpec, NotPermitted
from joulewise.device.saved import Entry, Saved, command_of, in_words, read


@dataclass(frozen=True, slots=True)
class Record:
    """One GPU's file."""

    uuid: str
    entries: Mapping[str, Entry] = field(default_factory=dict)
    standing: Mapping[str, float] = field(default_factory=dict)
    keeper: int | None = None
    """The living process that has it, as far as can be seen."""
    damage: str = ""
    """What is wrong with it; what precedes the fault is believed."""
    unknown: str = ""
    """Why it does not tell what was there before, so that nobody knows what is owed."""

    @property
    def damaged(self) -> bool:
        """Whether what was there before is lost with it."""
        return bool(self.unknown)

    @property
    def owed(self) -> bool:
        """Whether something is to be undone and nobody alive is about to."""
        return self.keeper is None and bool(self.entries or self.unknown)

    @property
    def local(self) -> bool:
        """Whether a living process holds a lease on it by itself, without the daemon."""
        return self.keeper is not None and any(entry.owner.pid == self.keeper for entry in self.entries.values())


def can_see(directory: Path) -> bool:
    """Whether we may look into ``directory``; a folder that is not there hides nothing."""
    try:
        directory.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return os.access(directory, os.R_OK | os.X_OK)


def not_ours(directory: Path) -> NotPermitted:
    """What to raise where ``can_see`` says no."""
    return NotPermitted(f"what leases had set is kept in {directory}, which only root may read; use 'sudo'")


def records(directory: Path) -> tuple[Record, ...]:
    """What is kept in ``directory``, GPU by GPU. Empty where we may not look: ask ``can_see`` first."""
    if not can_see(directory):
        return ()
    return tuple(_record(directory, uuid) for uuid in Saved.known(directory))


def named(found: Iterable[Record], prefix: str) -> list[Record]:
    """Those whose UUID begins so."""
    return [record for record in found if record.uuid.startswith(prefix)]


def one(found: Iterable[Record], prefix: str, directory: Path) -> Record:
    """The one whose UUID begins so. BadSpec if that is none, or several."""
    there = tuple(found)
    matching = named(there, prefix)
    if len(matching) == 1 and prefix:
        return matching[0]
    if prefix and matching:
        raise BadSpec(f"{prefix!r} may be {' or '.join(each.uuid for each in matching)}; write more of it")
    kept = ", ".join(each.uuid for each in there) or "nothing"
    raise BadSpec(f"{directory} keeps nothing of a GPU {prefix!r}; it keeps {kept}")


def as_leases(found: Iterable[Record], listed: Iterable[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """The files' leases, in the form in which the daemon lists its own; those that it has ``listed`` left out.

    ``stage`` is "local" (a living process's own, without the daemon) or "owed" (its process is gone). ``listed`` is
    None where no daemon answers.
    """
    known = {(gpu, each["lease"]) for each in listed or () for gpu in each["gpus"]}
    owed = {gpu for each in listed or () if each.get("stage") == "owed" for gpu in each["gpus"]}
    leases: dict[tuple[str, str], dict[str, Any]] = {}
    for record in found:
        if record.unknown and record.keeper is None and record.uuid not in owed:
            leases[f"owed-{record.uuid}", "owed"] = _unknown(record)
        for entry in record.entries.values():
            local = record.keeper is not None and record.keeper == entry.owner.pid
            theirs = record.keeper is not None and not local  # a daemon's, or a guardian's who gives it back
            if (record.uuid, entry.owner.lease) in known or record.uuid in owed or (theirs and listed is not None):
                continue
            lease = leases.setdefault(
                (entry.owner.lease, stage := "local" if local else "owed"),
                {
                    "lease": entry.owner.lease,
                    "uid": entry.owner.uid,
                    "pid": entry.owner.pid,
                    "command": entry.owner.command,
                    "reason": entry.owner.reason,
                    "gpus": [],
                    "knobs": [],
                    "stage": stage,
                    "settings": {},
                    **({"why": _why(record)} if not local else {}),
                },
            )
            lease["gpus"] = sorted({*lease["gpus"], record.uuid})
            lease["knobs"] = sorted({*lease["knobs"], entry.knob})
            if entry.wrote:
                lease["settings"].setdefault(record.uuid, {})[entry.knob] = entry.wrote[-1]
    return list(leases.values())


def _unknown(record: Record) -> dict[str, Any]:
    """What is owed where nobody knows whose lease it was, as one."""
    return {
        "lease": f"owed-{record.uuid}",
        "uid": None,
        "pid": None,
        "command": "",
        "reason": "",
        "gpus": [record.uuid],
        "knobs": [],
        "stage": "owed",
        "settings": {},
        "why": record.unknown,
    }


def _why(record: Record) -> str:
    if record.keeper is not None:
        return f"pid {record.keeper} ({command_of(record.keeper)}) keeps it"
    damage = f" and what it saved is damaged ({record.damage})" if record.damage else ""
    return f"its process is gone{damage}; as root: 'joulewise restore'"


def _record(directory: Path, uuid: str) -> Record:
    keeper = _keeper(directory / f"{uuid}.lock")
    path = directory / f"{uuid}.jsonl"
    said = read(path, uuid)
    if said is not None and said.damage and keeper is not None:
        said = read(path, uuid)  # its keeper may have been about to add a line
    if said is None:  # given back this moment
        return Record(uuid, keeper=keeper)
    unknown = in_words(said, path) if said.unknown else ""
    return Record(uuid, said.entries, said.standing, keeper, said.damage, unknown)


def _keeper(lock: Path) -> int | None:
    """The process that has signed ``lock`` and still has it open: trying to lock it could be in its owner's way."""
    try:
        pid = int(lock.read_text("utf-8", "replace").partition(" ")[0])
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except (OSError, ValueError):
        return None
    for descriptor in descriptors:
        with suppress(OSError):
            if descriptor.samefile(lock):
                return pid
    return None
