"""Which runs are the same work again: the key under which what was learnt is kept, and the run that a restart goes on.

The command line is the key, without what changes from run to run: seeds, folders for output, names, ports. A wrong
match costs little, since what is remembered is confirmed before it is relied on; a missed one costs a search.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from joulewise.core.marks import start_of
from joulewise.core.workload import Workload
from joulewise.store.views import Run

_CHANGES = re.compile(
    r"-{1,2}(\S*-)?(seed|out|output|out-?dir|output-?dir|save|save-?dir|log-?dir|log-?file|run-?name|run-?id|resume"
    r"|resume-from\S*|checkpoint\S*|ckpt\S*|port|addr|rdzv\S*|wandb\S*|node-rank)"
)
"""Flags whose value tells one run from another, not one workload from another."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def workload(command: Sequence[str], gpu_names: Sequence[str]) -> Workload:
    """What recurs of a command on these GPUs."""
    program, *rest = command
    kept = [Path(program).name]
    skip = False
    for place, word in enumerate(rest):
        if skip:
            skip = False
            continue
        name, equals, _ = word.partition("=")
        if _CHANGES.fullmatch(name.lower().replace("_", "-").replace(".", "-")):
            following = rest[place + 1] if place + 1 < len(rest) else "-"
            skip = not equals and not following.startswith("-")
            continue
        kept.append(word)
    return Workload(tuple(kept), gpu_names[0] if gpu_names else "", len(gpu_names))


def whereabouts() -> dict[str, Any]:
    """Where this process runs, so that a later one can tell whether it still does and shares its clock."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "boot": _boot(), "pid": pid, "pid_start": start_of(pid)}


def interrupted(runs: Iterable[Run], fingerprint: str, gpu_uuids: Sequence[str], wanted: str) -> Run | None:
    """The latest run of the same work on the same GPUs that was killed on this boot of this machine, if the latest was.

    Its journal can be gone on with: the clock is the same, and so are the cards. ``wanted`` is the objective in words:
    what was verified under one bound says nothing under another, and time lost under one is not owed under the other.
    """
    here = whereabouts()
    for run in runs:
        facts = run.facts
        if facts.get("fingerprint") != fingerprint or list(facts.get("gpus", ())) != list(gpu_uuids):
            continue
        alive = facts.get("pid_start") is not None and start_of(facts.get("pid", -1)) == facts["pid_start"]
        same = all(facts.get(key) == here[key] for key in ("host", "boot")) and here["boot"]
        same = same and facts.get("wanted") == wanted
        return run if same and run.finished is None and not alive and not facts.get("simulated") else None
    return None


def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""
