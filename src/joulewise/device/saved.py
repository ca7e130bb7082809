"""What was on a GPU before we turned its knobs, kept so that no death loses it. One file a GPU: ``GPU-….jsonl``.

The first line is a snapshot, written aside, synced and renamed into place before the first write to the hardware. Every
later line announces an act *before* it is done ("intend power_limit_w 300"), in one ``write`` each; a torn last line
means that its act had not begun. These lines need no sync: the death of a process does not lose what it has written,
and the death of the machine resets the GPU, which the boot id in each entry tells. A file in which nothing is left to
keep is removed, so that a file means that something is owed.

One process at a time owns a GPU's file, by ``flock`` on ``GPU-….lock``, which the kernel drops when it dies. ``Saved``
holds the file; ``Memory`` is the same for GPUs that live and die with this process. Neither touches hardware: the
keeper does.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from joulewise.core.errors import BadSpec, LeaseTaken, NotSaved
from joulewise.device import trusted
from joulewise.device.saved_lines import (
    PERSISTENCE,
    Entry,
    boot_id,
    from_line,
    to_entry,
    to_knob,
    to_line,
    to_number,
    wrote_after,
)

__all__ = ["PERSISTENCE", "STATE", "Entry", "Memory", "Saved", "boot_id", "command_of"]

STATE: Final = Path("/var/lib/joulewise")
"""Where the files are if nobody says otherwise; root's."""


_VERSION: Final = 1
_MOST_LINES: Final = 4096  # about 300 KB: read back in some 20 ms, and one sync in 4096 writes is not felt
_UUID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,79}")  # it becomes a file name


class Memory:
    """What ``Saved`` keeps, without the file: for virtual GPUs, which do not outlive this process."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.standing: dict[str, float] = {}
        """Clocks that joulewise was told to keep between leases."""
        self.quarantined: Path | None = None
        """Where a corrupt file goes by ``set_aside``. Until then it stays, as a file means that something is owed."""

    def save(self, *entries: Entry) -> None:
        """Keep what is there before the first write; durable on return. NotSaved, and nothing kept, if it cannot be."""
        self.entries.update({entry.knob: entry for entry in entries})

    def intend(self, knob: str, value: float, over: float | None = None) -> None:
        """We are about to write ``value`` over ``over``, the value that we have just read there.

        Older values need not be remembered then; without ``over`` they all are. NotSaved if it cannot be kept.
        """
        entry = self.entries[knob]
        self.entries[knob] = replace(entry, wrote=wrote_after(entry.wrote, value, over))

    def forget(self, *knobs: str) -> None:
        """Nothing is owed for these any more. Never fails: at worst it is looked at once more after a restart."""
        for knob in knobs:
            self.entries.pop(knob, None)

    def stand(self, knob: str, value: float | None) -> None:
        """Keep ``value`` between leases from now on; None: no more. Durable on return, or NotSaved."""
        if value is None:
            self.standing.pop(knob, None)
        else:
            self.standing[knob] = value

    def set_aside(self) -> None:
        """What a corrupt file may have held is dealt with: from now on it is for people only. Never fails."""
        self.quarantined = None

    def close(self) -> None:
        """Let go. Idempotent."""


class Saved(Memory):
    """The durable memory of one GPU; made by ``open``. Used by one thread at a time."""

    def __init__(self, directory: Path, uuid: str, lock_fd: int) -> None:
        """Not to be called: ``open`` gets the lock first."""
        super().__init__()
        self.uuid = uuid
        self._directory = directory
        self._path = directory / f"{uuid}.jsonl"
        self._lock_fd = lock_fd
        self._fd = -1
        self._length = self._lines = 0
        _open.add(self)

    @classmethod
    def open(cls, directory: Path, uuid: str) -> Saved:
        """Become the one owner of this GPU's file and read it.

        LeaseTaken, naming the holder, while another live process owns it; NotSaved if ``directory`` cannot be used.
        A corrupt file counts as empty, but nothing can be saved over it until it is ``set_aside``.
        """
        if not _UUID.fullmatch(uuid):
            raise BadSpec(f"{uuid!r} is no GPU's UUID; it would have to be letters, digits and dashes")
        try:
            lock_fd = _open_lock(directory, uuid)
            untrusted = trusted.why_not(directory.stat())
        except OSError as error:
            raise _not_saved(directory, error) from None
        if untrusted:  # whoever can write there could have any value brought back
            os.close(lock_fd)
            raise NotSaved(f"{directory} is not trusted: {untrusted}; nothing is set, and nothing in it believed")
        try:
            try:
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LeaseTaken(f"{uuid} is in the hands of {_holder(lock_fd)}; end that, or ask its daemon") from None
            _sign(lock_fd)
            saved = cls(directory, uuid, lock_fd)
        except BaseException:
            os.close(lock_fd)
            raise
        try:
            saved._load()
        except BaseException:
            saved.close()
            raise
        return saved

    @staticmethod
    def known(directory: Path) -> tuple[str, ...]:
        """UUIDs of the GPUs for which something is kept in ``directory``; none if there is no such directory."""
        try:
            return tuple(sorted(path.stem for path in directory.glob("*.jsonl") if _UUID.fullmatch(path.stem)))
        except OSError as error:
            raise _not_saved(directory, error) from None

    def save(self, *entries: Entry) -> None:
        """Keep what is there before the first write; durable on return. NotSaved, and nothing kept, if it cannot be."""
        self._write({**self.entries, **{entry.knob: entry for entry in entries}}, self.standing)
        super().save(*entries)

    def intend(self, knob: str, value: float, over: float | None = None) -> None:
        """As ``Memory.intend``; one ``write`` to the page cache, microseconds."""
        entry = self.entries[knob]
        if self._lines >= _MOST_LINES:
            with suppress(NotSaved):  # a full disk may still have room for one line
                self._write(self.entries, self.standing)
        # By hand: json.dumps takes as long as all the rest. Names are ours, and repr of a float is its JSON.
        seen = "null" if over is None else repr(float(over))
        self._append(f'{{"intend":["{knob}",{float(value)!r},{seen}]}}')
        self.entries[knob] = replace(entry, wrote=wrote_after(entry.wrote, value, over))

    def forget(self, *knobs: str) -> None:
        """As ``Memory.forget``. A file in which nothing is left is removed."""
        super().forget(*knobs)
        if not self.entries and not self.standing:
            self._remove()
            return
        with suppress(NotSaved):
            self._append(json.dumps({"forget": list(knobs)}))

    def stand(self, knob: str, value: float | None) -> None:
        """As ``Memory.stand``."""
        standing = {**self.standing, knob: value}
        kept = {each: kept for each, kept in standing.items() if kept is not None}
        if self.entries or kept:
            self._write(self.entries, kept)
        elif self.standing:
            self._remove_for_good()
        super().stand(knob, value)

    def set_aside(self) -> None:
        """As ``Memory.set_aside``: the corrupt file gets the name ``quarantined``."""
        if self.quarantined is not None:
            with suppress(OSError):  # read only by now: dealt with once more after a restart
                self._path.rename(self.quarantined)
        super().set_aside()

    def close(self) -> None:
        """Let go of the file and its lock. Idempotent."""
        if self._lock_fd >= 0:
            # Said aloud: a child that was forked this moment may still hold the descriptor.
            fcntl.flock(self._lock_fd, fcntl.LOCK_UN)
        self.drop()

    def drop(self) -> None:
        """In a forked child: the file and its lock are the parent's, so let go without unlocking."""
        self._close_file()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
        _open.discard(self)

    # The file.

    def _load(self) -> None:
        try:
            untrusted = trusted.why_not(self._path.lstat())
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise _not_saved(self._directory, error) from None
        if untrusted:
            raise NotSaved(f"{self._path} is not trusted: {untrusted}; look at it before you believe it")
        whole = raw[: raw.rfind(b"\n") + 1]  # a torn last line announced what then did not happen
        try:
            self._replay(whole)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self.entries.clear()
            self.standing.clear()
            self.quarantined = self._free_name()
            return
        try:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
            os.ftruncate(self._fd, len(whole))
        except OSError as error:
            # Read only, or full: what is in it can still be restored, and new leases will be refused.
            self._close_file()
            if not self.entries and not self.standing:
                raise _not_saved(self._directory, error) from None
        self._length = len(whole)

    def _replay(self, raw: bytes) -> None:
        """Fold the lines. ValueError, KeyError or TypeError if they are not what we write."""
        lines = raw.decode("utf-8").split("\n")[:-1]
        self._lines = len(lines)
        first = from_line(lines[0] if lines else "")
        if first["joulewise"] != _VERSION or first["gpu"] != self.uuid:
            raise ValueError("of another version, or of another GPU")
        self.entries = {entry.knob: entry for entry in map(to_entry, first["entries"])}
        self.standing = {to_knob(knob): to_number(value) for knob, value in first["standing"].items()}
        for line in lines[1:]:
            ((act, what),) = from_line(line).items()
            if act == "intend":
                knob, value, over = what
                Memory.intend(self, knob, to_number(value), None if over is None else to_number(over))
            elif act == "forget":
                Memory.forget(self, *what)
            else:
                raise ValueError(f"no act is called {act!r}")

    def _write(self, entries: Mapping[str, Entry], standing: Mapping[str, float]) -> None:
        """A new file with one snapshot, durable on return. NotSaved if that fails; the old file is then as it was."""
        if self.quarantined is not None:
            raise NotSaved(
                f"{self._path} is unreadable and the clocks that it may be about are not free yet, so nothing was set; "
                "'joulewise restore' tries again"
            )
        record = {
            "joulewise": _VERSION,
            "gpu": self.uuid,
            "entries": [asdict(entry) for entry in entries.values()],
            "standing": dict(standing),
        }
        line = to_line(json.dumps(record, allow_nan=False))
        aside = self._directory / f"{self.uuid}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = -1
        try:
            fd = os.open(aside, flags, mode=0o600)
            _write_all(fd, line)
            os.fsync(fd)
            aside.rename(self._path)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            with suppress(OSError):
                aside.unlink()
            raise _not_saved(self._directory, error) from None
        self._close_file()  # the old one, which has no name any more
        self._fd, self._length, self._lines = fd, len(line), 1
        try:
            _sync_directory(self._directory)
        except OSError as error:
            raise _not_saved(self._directory, error) from None

    def _append(self, body: str) -> None:
        line = to_line(body)
        if self._fd < 0:
            raise NotSaved(f"{self._path} cannot be written, so nothing was set; see that its directory can be")
        try:
            _write_all(self._fd, line)
        except OSError as error:
            with suppress(OSError):  # a part of a line must not stand before the next one
                os.ftruncate(self._fd, self._length)
            raise _not_saved(self._directory, error) from None
        self._length += len(line)
        self._lines += 1

    def _remove(self) -> None:
        self._close_file()
        with suppress(OSError):  # read only by now: looked at once more after a restart, and found undone
            self._path.unlink(missing_ok=True)

    def _remove_for_good(self) -> None:
        """As ``_remove``, but durable on return, or NotSaved."""
        try:
            self._path.unlink(missing_ok=True)
            _sync_directory(self._directory)
        except OSError as error:
            raise _not_saved(self._directory, error) from None
        self._close_file()

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._length = self._lines = 0

    def _free_name(self) -> Path:
        names = (self._directory / f"{self._path.name}.corrupt-{number}" for number in itertools.count(1))
        return next(name for name in names if not name.exists())


_open: weakref.WeakSet[Saved] = weakref.WeakSet()


def _after_fork() -> None:
    """In a forked child: the files are the parent's; holding on to its locks would outlive it."""
    for saved in list(_open):
        saved.drop()


os.register_at_fork(after_in_child=_after_fork)


def _write_all(fd: int, data: bytes) -> None:
    written = os.write(fd, data)
    if written < len(data):  # a full disk takes a part: the rest says why
        os.write(fd, data[written:])
        raise OSError(28, "only a part could be written")  # ENOSPC: two writes are not one act


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _open_lock(directory: Path, uuid: str) -> int:
    path, flags = directory / f"{uuid}.lock", os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, mode=0o600)
    except OSError:
        # A disk that has become read only can still tell what is owed, and its lock file still be locked.
        return os.open(path, os.O_RDONLY | flags)


def _sign(lock_fd: int) -> None:
    """Say who we are in the lock file, for people; a full disk may leave it unsaid."""
    with suppress(OSError):
        os.ftruncate(lock_fd, 0)
        os.pwrite(lock_fd, f"{os.getpid()} {command_of(os.getpid())}".encode(), 0)


def _holder(lock_fd: int) -> str:
    try:
        pid, _, command = os.pread(lock_fd, 256, 0).decode("utf-8", "replace").partition(" ")
    except OSError:
        pid = command = ""
    return (f"pid {pid}" if pid.isdigit() else "another process") + (f" ({command})" if command else "")


def command_of(pid: int) -> str:
    """The name of a process's program, for people; never its arguments, which may be private. Empty if unknown."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return ""
    return "".join(c if c.isprintable() else "?" for c in name)


def _not_saved(directory: Path, error: OSError) -> NotSaved:
    return NotSaved(
        f"what is set now cannot be kept safe in {directory} ({error.strerror or error}), so nothing was set; "
        "free its disk, or name another place with --state"
    )
