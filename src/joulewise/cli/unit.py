"""The systemd unit of the daemon, made for the Python that joulewise is installed in.

The unit ships beside this module as ``joulewise.service``, hardened and with the paths of a system-wide install; only
what depends on where joulewise lies is filled in here. Nothing is written or started: the text goes to stdout.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import stat
import sys
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from joulewise.core.errors import BadSpec
from joulewise.device import trusted

SYSTEM_PYTHON = "/usr/bin/python3"
"""The Python that the unit as shipped names."""
_SYSTEM_KILL = "/bin/kill"
_HIDDEN = (Path("/tmp"), Path("/var/tmp"))  # PrivateTmp= puts empty folders there
_HOMES = (Path("/home"), Path("/root"), Path("/run/user"))  # what ProtectHome= covers


def text() -> str:
    """The unit as shipped."""
    return resources.files(__package__).joinpath("joulewise.service").read_text("utf-8")


def made_for(python: Path, folders: Iterable[Path]) -> str:
    """The unit that starts ``python``, which loads from ``folders``.

    BadSpec where a daemon so installed could not start inside its sandbox, or should not: from a temporary folder.
    """
    needed = [python, *folders]
    for path in needed:
        if any(path.is_relative_to(hidden) for hidden in _HIDDEN):
            raise BadSpec(
                f"joulewise lies in {path}, a temporary folder that a service does not see; "
                "install it in a lasting place, such as a virtual environment in /opt/joulewise"
            )
        if any(character.isspace() or character in "%$\"'\\;" for character in str(path)):
            raise BadSpec(f"{path} has characters that mean something to systemd; install joulewise in a plainer path")
    unit = text().replace(SYSTEM_PYTHON, str(python))
    if any(path.is_relative_to(home) for path in needed for home in _HOMES):
        unit = unit.replace("ProtectHome=yes", "ProtectHome=read-only")
    kill = shutil.which("kill", path="/bin:/usr/bin")
    return unit if kill in (None, _SYSTEM_KILL) else unit.replace(_SYSTEM_KILL, str(kill))


def here() -> tuple[Path, list[Path]]:
    """The Python that runs this, and the folders from which it loads itself, joulewise and the driver's binding."""
    # Not resolved: a virtual environment's python is a link, and it is the link that knows the environment.
    python = Path(os.path.abspath(sys.executable))  # noqa: PTH100
    folders = [python.resolve().parent, Path(sys.prefix), Path(sys.base_prefix), Path(__file__).resolve().parents[2]]
    binding = importlib.util.find_spec("pynvml")
    if binding is not None and binding.origin is not None:
        folders.append(Path(binding.origin).parent)
    return python, list(dict.fromkeys(folders))


def closed(paths: Iterable[Path]) -> str | None:
    """Why the service could not read ``paths``: root without CAP_DAC_OVERRIDE is a user like others. None if it can."""
    for step in _steps(paths):
        seen = step.stat()
        wanted = stat.S_IXUSR if seen.st_uid == 0 else stat.S_IXGRP if seen.st_gid == 0 else stat.S_IXOTH
        if not seen.st_mode & wanted:
            return f"{step} is closed to it (mode {stat.S_IMODE(seen.st_mode):04o}, uid {seen.st_uid})"
    return None


def untrusted(paths: Iterable[Path]) -> str | None:
    """Why what lies at ``paths`` should not run as root: somebody else could change it. None if nobody could."""
    for step in _steps(paths):
        seen = step.stat()
        if (reason := trusted.why_not(seen)) and not seen.st_mode & stat.S_ISVTX:
            return f"{step}: {reason}"
    return None


def _steps(paths: Iterable[Path]) -> list[Path]:
    """The paths and all folders on the way to them, links followed or not."""
    return list(dict.fromkeys(step for path in paths for end in (path, path.resolve()) for step in (end, *end.parents)))
