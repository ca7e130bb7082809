"""Grants: rights that an admin or a scheduler's prolog gives to one user for a while, one small file each.

A lease is asked for before the job has touched its GPU, and inside a container pids mean nothing outside it; who has
been given which GPU is known to the scheduler. So its prolog writes a grant (``joulewise grant add``) and its epilog
removes it, whether the daemon runs or not. The daemon only reads: it looks when the folder or a file in it has changed.
A grant ends by the calendar, as jobs do: a clock that is set back prolongs it.

The folder belongs to root and is closed to everybody else. A file that anybody but root could have written, that has
expired or is not understood gives nothing; what is wrong with it is kept in ``problems``.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from joulewise.core.errors import BadSpec, NotPermitted
from joulewise.daemon.site import gpu_name, is_number, knob_name
from joulewise.device import trusted

GRANTS = Path("/run/joulewise/grants")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SUFFIX = ".json"
_TICK_NS = 100_000_000
"""A time of change moves in ticks (at most 10 ms; some network file systems are coarser). A listing made
within this time of the last change may have missed one of the same tick, so it is not relied on."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One user's right to some GPUs for a while."""

    name: str
    uid: int
    gpus: tuple[str, ...]
    cgroup: str | None
    """Only for processes in this control group or below; None: for every process of the user."""
    knobs: Mapping[str, tuple[float, float]] | None
    """Knob → lowest and highest value; None: what the site gives to a grant that does not say."""
    expires_unix_s: float
    job: str | None = None
    """The scheduler's name of the job, for people and for ``remove``."""
    shared: bool = False
    """Holds too while processes of other users run on the GPU, whose work it then changes."""

    @property
    def claims(self) -> bool:
        """Whether it gives its user nothing, and only says that these GPUs are its job's, for the node's agent."""
        return self.job is not None and self.knobs is not None and not self.knobs

    def holds_in(self, cgroups: tuple[str, ...]) -> bool:
        """Whether it is for a process inside these control groups."""
        inside = self.cgroup
        return inside is None or any(each == inside or each.startswith(f"{inside}/") for each in cgroups)

    def to_json(self) -> str:
        """As it lies in its file."""
        return json.dumps(asdict(self), allow_nan=False) + "\n"

    @classmethod
    def of(cls, fields: Mapping[str, Any], where: str) -> Grant:
        """A grant from what a file or a command line says; BadSpec, beginning with ``where``, if it makes no sense."""
        unknown = set(fields) - set(cls.__slots__)
        if unknown:
            raise BadSpec(f"{where}: {min(unknown)!r} is no part of a grant")
        gpus, knobs, expires = fields.get("gpus"), fields.get("knobs"), fields.get("expires_unix_s")
        if not isinstance(gpus, (list, tuple)) or not gpus:
            raise BadSpec(f"{where}: gpus must be a list of at least one UUID")
        if not is_number(expires):
            raise BadSpec(f"{where}: expires_unix_s = {expires!r} must be a time in seconds; a grant always ends")
        uid = fields.get("uid")
        if not isinstance(uid, int) or isinstance(uid, bool) or not 0 <= uid < 2**32 - 1:
            raise BadSpec(f"{where}: uid = {uid!r} must be a user's number")
        return cls(
            name=valid_name(fields.get("name"), f"{where}: name"),
            uid=uid,
            gpus=tuple(dict.fromkeys(gpu_name(each, where) for each in gpus)),
            cgroup=None if fields.get("cgroup") is None else _cgroup(fields["cgroup"], where),
            knobs=None if knobs is None else _knobs(knobs, where),
            expires_unix_s=float(expires),
            job=None if fields.get("job") is None else valid_name(fields["job"], f"{where}: job"),
            shared=_flag(fields.get("shared", False), f"{where}: shared"),
        )


def _flag(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise BadSpec(f"{what} = {value!r} must be true or false")
    return value


class Grants:
    """The grants in a folder, read again when it has changed. Not thread-safe: the service is single-threaded."""

    def __init__(self, directory: Path = GRANTS, *, now: Callable[[], float] = time.time) -> None:
        self.directory = directory
        self.problems: tuple[str, ...] = ()
        """What is wrong with the folder or with files in it, as of the last look."""
        self._now = now
        self._read: tuple[Grant, ...] = ()
        self._as_of: tuple[tuple[str, int, int], ...] | None = None

    def live(self) -> tuple[Grant, ...]:
        """The grants that hold now. Costs a look at the times of change, some microseconds a file, if nothing has."""
        if self._as_of is None or self._as_of != _changed(self.directory):
            begun_ns = time.time_ns()
            before = _changed(self.directory)
            self._read, self.problems = read(self.directory)
            settled = before is not None and max(each[2] for each in before) < begun_ns - _TICK_NS
            self._as_of = before if settled else None
        now = self._now()
        return tuple(grant for grant in self._read if grant.expires_unix_s > now)


def read(directory: Path) -> tuple[tuple[Grant, ...], tuple[str, ...]]:
    """The grants in the folder by name, the expired too, and what is wrong with the rest. No folder: no grants."""
    try:
        folder = trusted.open_folder(directory)
    except FileNotFoundError:
        return (), ()
    except (BadSpec, OSError) as error:
        return (), (f"no grant is believed: {error}",)
    grants: list[Grant] = []
    problems: list[str] = []
    try:
        for file in sorted(os.listdir(folder)):  # noqa: PTH208 - of the open folder, not of whatever is there now
            if file.startswith(".") or not file.endswith(_SUFFIX):
                continue  # being written, or none of ours
            shown = str(directory / file)
            try:
                fields = json.loads(trusted.read_in(folder, file, shown=shown))
                if not isinstance(fields, dict):
                    raise BadSpec(f"{shown} holds no JSON object")
                grant = Grant.of(fields, shown)
                if file != grant.name + _SUFFIX:
                    raise BadSpec(f"{shown}: the file of {grant.name!r} must be called {grant.name}{_SUFFIX}")
                grants.append(grant)
            except FileNotFoundError:
                continue  # removed while we looked
            except BadSpec as error:
                problems.append(str(error))
            except (ValueError, RecursionError) as error:
                problems.append(f"{shown} is no JSON: {error}")
    except OSError as error:
        problems.append(f"{directory} cannot be listed: {error.strerror}")
    finally:
        os.close(folder)
    return tuple(grants), tuple(problems)


def add(directory: Path, grant: Grant) -> None:
    """Write the grant, in place of one of the same name; forget those that have expired.

    Atomic and durable enough: a reader sees all of it or nothing, and after a crash of the machine no job is left that
    it was for. Raises NotPermitted if we may not write there, BadSpec if the folder cannot be trusted.
    """
    with _opened(directory, make=True) as folder:
        hidden = f".{grant.name}.{secrets.token_hex(4)}"
        try:
            file = os.open(
                hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder
            )
            with closing(os.fdopen(file, "w", encoding="utf-8")) as stream:
                stream.write(grant.to_json())
            os.rename(hidden, grant.name + _SUFFIX, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(hidden, dir_fd=folder)
            raise
        for old in read(directory)[0]:
            if old.expires_unix_s <= time.time():
                with suppress(FileNotFoundError):
                    os.unlink(old.name + _SUFFIX, dir_fd=folder)


def remove(directory: Path, *, name: str | None = None, job: str | None = None) -> tuple[Grant, ...]:
    """Take back the grants of that name or job; those that were there. Raises as ``add`` does."""
    taken = tuple(grant for grant in read(directory)[0] if grant.name == name or (job is not None and grant.job == job))
    if taken:
        with _opened(directory, make=False) as folder:
            for grant in taken:
                with suppress(FileNotFoundError):
                    os.unlink(grant.name + _SUFFIX, dir_fd=folder)
    return taken


def valid_name(name: object, where: str) -> str:
    """``name`` if a grant or job may be called so; BadSpec otherwise. It becomes a file's name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadSpec(
            f"{where} {name!r} must be 1 to 100 letters, digits, '.', '_' or '-', and begin with one of the first two"
        )
    return name


@contextmanager
def _opened(directory: Path, *, make: bool) -> Iterator[int]:
    """The folder, open and closed to others; made if wanted."""
    try:
        if make:
            if not directory.parent.exists():
                directory.parent.mkdir(parents=True, exist_ok=True)
                directory.parent.chmod(0o755)  # whatever the umask: the daemon's socket will be there, for everybody
            with suppress(FileExistsError):
                directory.mkdir(mode=0o700)
        folder = trusted.open_folder(directory)
        try:
            yield folder
        finally:
            os.close(folder)
    except PermissionError as error:
        raise NotPermitted(f"grants in {directory} are root's to give: {error.strerror}; use 'sudo'") from error
    except OSError as error:
        raise BadSpec(f"grants cannot be kept in {directory}: {(error.strerror or str(error)).lower()}") from error


def _changed(directory: Path) -> tuple[tuple[str, int, int], ...] | None:
    """Which folder and which files are there and when each last changed; None if there is no folder."""
    try:
        folder = os.lstat(directory)
        if not stat.S_ISDIR(folder.st_mode):
            return None
        with os.scandir(directory) as files:
            seen = [("", folder), *((file.name, file.stat(follow_symlinks=False)) for file in files)]
    except OSError:
        return None
    return tuple((name, each.st_ino, max(each.st_mtime_ns, each.st_ctime_ns)) for name, each in seen)


def _cgroup(path: object, where: str) -> str:
    """A control group's path as /proc/PID/cgroup shows it, below the root, without a slash at its end."""
    if not isinstance(path, str) or not path.startswith("/") or ".." in path.split("/") or path.strip("/") == "":
        raise BadSpec(f"{where}: cgroup = {path!r} must be a path below the root such as /slurm/uid_1000/job_123")
    return path.rstrip("/")


def _knobs(knobs: object, where: str) -> Mapping[str, tuple[float, float]]:
    if not isinstance(knobs, dict):
        raise BadSpec(f"{where}: knobs must be an object of knobs and ranges")
    ranges = {}
    for knob, bounds in knobs.items():
        knob_name(knob, where)
        if not isinstance(bounds, (list, tuple)) or len(bounds) != 2 or not all(is_number(each) for each in bounds):
            raise BadSpec(f"{where}: {knob} = {bounds!r} must be two numbers, the lowest and the highest value")
        low, high = map(float, bounds)
        if not 0 <= low <= high:
            raise BadSpec(f"{where}: {knob} = {low:g}..{high:g} must run upwards from 0 on")
        ranges[knob] = (low, high)
    return ranges
