"""Slurm's commands, run; and what they say when something is wrong, in our words.

What it is: the one place where a process is started for Slurm. It turns the ways in which Slurm can be away (not
installed, no configuration, controller down, munge down) into one line with the way out.

What it is not: a reader of what they print when all is well (``slurm_text``).
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from joulewise.core.errors import BadSpec, EngineLost, MissingPart
from joulewise.core.parsing import json_value

TESTED = (22, 5)
"""The version that all this was run with. Older ones have no JSON that we know; newer ones are taken with a note."""

_LONGEST_S = 30.0  # a controller that is down costs a command 9 s of its own; one that is busy may take longer

# What Slurm answers about a job or a node that cannot be so, as opposed to Slurm being away.
_REFUSED = re.compile(
    "Invalid job id|already finished|[Pp]ermission denied|configuration is not available|Invalid node name"
    "|Invalid partition|Requested operation is presently disabled|Invalid (account|qos|generic resource|feature)"
    "|[Nn]ode count specification invalid|[Mm]ore processors requested|Job violates|Pathname of a file"
    "|Invalid node state|Unable to process|Job is no longer pending|Invalid directive|[Uu]nrecognized option"
)

OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
"""Why a process cannot be started, or a file be opened, at this moment: it may be possible the next."""

_NO_CONTROLLER = "slurmctld does not answer; see 'scontrol ping', then start it ('systemctl start slurmctld')"


class Refused(BadSpec):
    """Slurm is well, and will not do this."""


class SlurmCommands:
    """Runs Slurm's commands with ``environ`` (this process's if None; ``PATH`` and ``SLURM_CONF`` in it count)."""

    def __init__(self, environ: Mapping[str, str] | None = None, *, longest_s: float = _LONGEST_S) -> None:
        self.environ = dict(os.environ if environ is None else environ)
        self.environ["SLURM_TIME_FORMAT"] = "%s"  # sacct: seconds since 1970
        self.environ.pop("SLURM_RESTART_COUNT", None)  # of the job that we may be in, and sbatch would hand it on
        self._longest_s = longest_s

    def run(self, *words: str, directory: str | os.PathLike[str] | None = None) -> str:
        """What the command printed.

        MissingPart where it is not installed, EngineLost where Slurm does not answer or no process can be started now,
        ``Refused`` (a BadSpec) where it answers no.
        """
        program = shutil.which(words[0], path=self.environ.get("PATH"))
        if program is None:
            raise MissingPart(
                f"Slurm's {words[0]} is not installed here; install slurm-client of the cluster's version "
                "(Debian: apt-get install slurm-client), or correct PATH"
            )
        try:
            ended = subprocess.run(
                [program, *words[1:]],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                env=self.environ,
                timeout=self._longest_s,
                cwd=directory,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise EngineLost(
                f"'{words[0]}' did not end within {self._longest_s:g} s; see 'scontrol ping', then slurmctld's log"
            ) from None
        except OSError as fault:
            if fault.errno not in OUT_OF_RESOURCES:
                raise
            raise EngineLost(
                f"'{words[0]}' cannot be started: {(fault.strerror or str(fault)).lower()}; "
                "see this machine's memory, 'ulimit -n' and 'ulimit -u'"
            ) from fault
        if ended.returncode:
            raise self._fault(words, ended.stderr + ended.stdout)
        return ended.stdout if not _away(ended.stderr) else self._raise(words, ended.stderr)

    def answer(self, *words: str) -> dict[str, Any]:
        """What a command with ``--json`` printed.

        In 22.05 such a command exits with 0 and an empty list when the controller is down: what it says under
        ``errors`` counts as its failure, or all jobs would seem to be gone.
        """
        text = self.run(*words, "--json")
        try:
            answer = json_value(text)
        except ValueError:
            raise EngineLost(
                f"'{' '.join(words)} --json' printed no JSON ({text[:60]!r}…); its plugins may be missing "
                "(Debian: slurm-wlm-basic-plugins)"
            ) from None
        if not isinstance(answer, dict):
            raise EngineLost(f"'{' '.join(words)} --json' printed no JSON object")
        if faults := answer.get("errors"):
            said = "; ".join(str(each.get("description", each)) for each in faults if isinstance(each, dict))
            raise self._fault(words, said)
        return answer

    def version(self) -> tuple[int, int]:
        """Slurm's version here, as (22, 5). BadSpec for one older than what was tested."""
        said = self.run("sinfo", "--version")
        found = re.search(r"(\d+)\.(\d+)", said)
        if found is None:
            raise EngineLost(f"'sinfo --version' said {said.strip()!r}, which names no version")
        version = int(found[1]), int(found[2])
        if version < TESTED:
            raise BadSpec(
                f"Slurm {said.split()[-1]} is older than 22.05, the oldest that is known here; update Slurm, "
                "or run without it ('joulewise run')"
            )
        return version

    def has(self, program: str) -> bool:
        """Whether a command is installed."""
        return shutil.which(program, path=self.environ.get("PATH")) is not None

    def _raise(self, words: tuple[str, ...], said: str) -> str:
        raise self._fault(words, said)

    def _fault(self, words: tuple[str, ...], said: str) -> Exception:
        command = " ".join(words[:2]) if words[0] in {"scontrol", "sacctmgr"} else words[0]
        line = _last_line(said)
        if words[0] in {"sacct", "sacctmgr"} and re.search("[Pp]ersist|slurmdbd|Connection refused", said):
            return EngineLost(f"'{command}': slurmdbd does not answer; start it ('systemctl start slurmdbd')")
        if away := _away(said):
            return EngineLost(f"'{command}': {away}")
        if _REFUSED.search(said):
            rights = "; it needs the rights of a Slurm operator" if "ermission denied" in said else ""
            return Refused(f"Slurm refuses '{command}': {line}{rights}")
        if words[:2] != ("scontrol", "ping") and self._is_down():
            return EngineLost(f"'{command}': {_NO_CONTROLLER}")
        if words[0] == "scancel" and not line:  # all that it says of a job that is over
            return Refused(f"Slurm refuses '{command}': the job is over")
        return EngineLost(f"'{command}' failed: {line or 'it gave no reason'}; see slurmctld's log")

    def _is_down(self) -> bool:
        try:
            self.run("scontrol", "ping")
        except EngineLost:
            return True
        return False


def _away(said: str) -> str:
    """Which part of Slurm is away, with the way out; empty where none is."""
    if re.search("unge|authentication", said):
        return "munge does not answer here, so Slurm trusts nobody; start it ('systemctl start munge')"
    if re.search("configuration source|not find SlurmctldHost|slurm.conf.*No such file", said):
        return "no Slurm is configured here; set SLURM_CONF (/etc/slurm/slurm.conf), or go to a login node"
    if re.search(
        "is DOWN$|Unable to contact slurm controller|Connection refused|[Cc]onnect failure|Zero Bytes", said, re.M
    ):
        return _NO_CONTROLLER
    return ""


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return re.sub(r"^\w+: (error|fatal): ", "", lines[-1]) if lines else ""
