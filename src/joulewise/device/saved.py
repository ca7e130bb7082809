"""What was on a GPU before we turned its knobs, kept so that no death loses it. One file a GPU: ``GPU-….jsonl``.

The first line is a snapshot, written aside, synced and renamed into place before the first write to the hardware. Every
later line announces an act *before* it is done ("intend power_limit_w 300"), in one ``write`` each. These lines need no
sync: the death of a process does not lose what it has written, and the death of the machine resets the GPU, which the
boot id in each entry tells. A file in which nothing is left to keep is removed, so that a file means that something is
owed.

A file may be damaged all the same (``saved_lines`` says how that is noticed). What precedes the fault is believed, and
its entries are ``unsure``: a limit that they do not explain may be ours. Where the snapshot is lost nobody knows what
was there (``unknown``): nothing is set on that GPU, and the file stays, until somebody says to forget it. No file that
is damaged is ever deleted: it gets the name ``….corrupt-N`` when another takes its place.

One process at a time owns a GPU's file, by ``GPU-….lock`` beside it; who writes the hardware also has the GPU's own
lock (``lock_gpu``). ``Saved`` holds the file; ``Memory`` is the same for GPUs that live and die with this process.
Neither touches hardware: the keeper does.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import stat
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from joulewise.core.errors import BadSpec, NotSaved
from joulewise.device import locks, trusted
from joulewise.device.locks import Lock, command_of
from joulewise.device.saved_lines import (
    PERSISTENCE,
    VERSION,
    Contents,
    Entry,
    boot_id,
    contents,
    end_line,
    to_line,
    to_uuid,
    wrote_after,
)

__all__ = ["PERSISTENCE", "STATE", "Entry", "Memory", "Saved", "boot_id", "command_of", "in_words", "read"]

STATE: Final = Path("/var/lib/joulewise")
"""Where the files are if nobody says otherwise; root's."""


_MOST_LINES: Final = 4096  # about 300 KB: read back in some 20 ms, and one sync in 4096 writes is not felt
_MOST_BYTES: Final = 4 << 20
"""Far more than that, with the longest reasons that owners may give; what follows is no file of ours."""


def read(path: Path, uuid: str) -> Contents | None:
    """What the file of the GPU ``uuid`` says; None if there is none. Never raises, follows no link, waits for no pipe.

    A file that others could have written is not believed, nor replaced.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        linked = error.errno == errno.ELOOP
        why = "it is a link, which is not followed" if linked else f"it cannot be read ({error.strerror})"
        return Contents(damage=why, unknown=why, ours=False)
    try:
        seen = os.fstat(fd)
        why = "" if stat.S_ISREG(seen.st_mode) else "it is no plain file"
        if untrusted := why or trusted.why_not(seen):
            return Contents(damage=untrusted, unknown=untrusted, ours=False)
        with os.fdopen(os.dup(fd), "rb") as file:
            raw = file.read(_MOST_BYTES)
    except OSError as error:
        why = f"it cannot be read ({error.strerror})"
        return Contents(damage=why, unknown=why, ours=False)
    finally:
        os.close(fd)
    return contents(raw, uuid)


def in_words(said: Contents, path: Path) -> str:
    """Why the file at ``path`` does not tell what was there before, and what to do about it."""
    uuid = path.stem
    forget = f"'joulewise restore --forget {uuid}'"
    if not said.damage:  # as ``clocks_freed`` has left it
        return f"{said.unknown}; set its power limit by hand, then {forget}"
    if said.ours:
        why = f"what was there before a lease is lost with {path} ({said.unknown})"
        return f"{why}; set its power limit by hand, then {forget}"
    return (
        f"{path}, which says what was there before a lease, is left as it is: {said.unknown}; see to that, or {forget}"
    )


class Memory:
    """What ``Saved`` keeps, without the file: for virtual GPUs, which do not outlive this process."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.standing: dict[str, float] = {}
        """Clocks that joulewise was told to keep between leases."""
        self.unknown = ""
        """Why what was there before cannot be known any more, and the way out; empty if it is known."""
        self.clocks_locked = False
        """Whether, where it is unknown, nobody has freed the clocks yet."""

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

    def clocks_freed(self) -> None:
        """The clocks that a lost file may have been about are free. Never fails: at worst they are freed once more."""
        self.clocks_locked = False

    def set_aside(self) -> None:
        """Somebody has dealt with what is ``unknown``: from now on a damaged file is for people only."""
        self.unknown, self.clocks_locked = "", False

    def lock_gpu(self, folder: Path, *, socket: Path | None = None) -> None:
        """Keep every other process from writing this GPU, whatever places it was told; see ``Saved.lock_gpu``."""

    def close(self) -> None:
        """Let go. Idempotent."""


class Saved(Memory):
    """The durable memory of one GPU; made by ``open``. Used by one thread at a time."""

    def __init__(self, directory: Path, uuid: str, lock: Lock) -> None:
        """Not to be called: ``open`` gets the lock first."""
        super().__init__()
        self.uuid = uuid
        self.damage = ""
        """What is wrong with the file, until another takes its place; empty if it is whole."""
        self._directory = directory
        self._path = directory / f"{uuid}.jsonl"
        self._locks = [lock]
        self._fd = -1
        self._length = self._lines = self._checksum = 0
        self._anew = False
        """Whether nothing can be added to the file, so that the next line needs a new one."""
        _open.add(self)

    @classmethod
    def open(cls, directory: Path, uuid: str) -> Saved:
        """Become the one owner of this GPU's file and read it.

        LeaseTaken, naming the holder, while another live process owns it; NotSaved if ``directory`` cannot be used.
        Damage raises nothing: see ``damage`` and ``unknown``. Nothing can be saved over what is unknown.
        """
        try:
            to_uuid(uuid)
        except ValueError as error:
            raise BadSpec(str(error)) from None
        try:
            lock = Lock.take(directory / f"{uuid}.lock", uuid, "end that, or ask its daemon")
        except OSError as error:
            raise _not_saved(directory, error) from None
        saved = cls(directory, uuid, lock)
        try:
            if untrusted := trusted.why_not(directory.stat()):  # whoever can write there could have any value back
                raise NotSaved(f"{directory} is not trusted: {untrusted}; nothing is set, and nothing in it believed")
            lock.sign()
            saved._load()
        except OSError as error:
            saved.close()
            raise _not_saved(directory, error) from None
        except BaseException:
            saved.close()
            raise
        return saved

    def lock_gpu(self, folder: Path, *, socket: Path | None = None) -> None:
        """Keep every other process from writing this GPU, wherever it saves or listens; until ``close``.

        LeaseTaken, naming the holder, while another has it; NotSaved if that cannot be made sure, or if its last
        holder has left what it owed in another folder. ``socket``: where the daemon that we are listens.
        """
        try:
            locks.check_folder(folder)
            lock = Lock.take(folder / f"{self.uuid}.lock", self.uuid, "end that, or ask its daemon")
        except OSError as error:
            raise NotSaved(
                f"{self.uuid} cannot be locked in {folder} ({error.strerror or error}), so nothing was set; "
                "see that root can write there"
            ) from None
        other = Path(str(lock.before.get("state", self._directory)))
        if other != self._directory.absolute():
            if not other.is_dir():  # not mounted, or gone: nobody can say what is owed there
                lock.release()
                raise NotSaved(
                    f"what a process that is gone had set on {self.uuid} is kept in {other}, which is not there; bring "
                    f"it back, or, if it is lost for good, set the GPU right and remove {lock.path}",
                    owed=True,
                )
            left = read(other / self._path.name, self.uuid)
            if left is not None and (left.entries or left.unknown):
                lock.release()
                raise NotSaved(
                    f"what a process that is gone had set on {self.uuid} is kept in {other}; "
                    f"first 'joulewise restore --state {other}'",
                    owed=True,
                )
        self._locks.append(lock)
        facts = {"state": str(self._directory.absolute())}
        lock.sign(**(facts if socket is None else {**facts, "socket": str(socket)}))

    @staticmethod
    def known(directory: Path) -> tuple[str, ...]:
        """UUIDs of the GPUs for which something is kept in ``directory``; none if there is no such directory."""
        try:
            return tuple(sorted(path.stem for path in directory.glob("*.jsonl") if _is_uuid(path.stem)))
        except OSError as error:
            raise _not_saved(directory, error) from None

    def save(self, *entries: Entry) -> None:
        """Keep what is there before the first write; durable on return. NotSaved, and nothing kept, if it cannot be."""
        self._check_known()
        self._write({**self.entries, **{entry.knob: entry for entry in entries}}, self.standing)
        super().save(*entries)

    def intend(self, knob: str, value: float, over: float | None = None) -> None:
        """As ``Memory.intend``; one ``write`` to the page cache, microseconds."""
        entry = self.entries[knob]
        if self._anew:
            self._write(self.entries, self.standing)
        elif self._lines >= _MOST_LINES:
            with suppress(NotSaved):  # a full disk may still have room for one line
                self._write(self.entries, self.standing)
        # By hand: json.dumps takes as long as all the rest. Names are ours, and repr of a float is its JSON.
        seen = "null" if over is None else repr(float(over))
        self._append(f'{{"intend":["{knob}",{float(value)!r},{seen}]}}')
        self.entries[knob] = replace(entry, wrote=wrote_after(entry.wrote, value, over))

    def forget(self, *knobs: str) -> None:
        """As ``Memory.forget``. A file in which nothing is left is removed."""
        super().forget(*knobs)
        if self.unknown:
            return
        if not self.entries and not self.standing:
            self._remove()
            return
        with suppress(NotSaved):
            if self._anew:
                self._write(self.entries, self.standing)
            else:
                self._append(json.dumps({"forget": list(knobs)}))

    def stand(self, knob: str, value: float | None) -> None:
        """As ``Memory.stand``."""
        self._check_known()
        standing = {**self.standing, knob: value}
        kept = {each: kept for each, kept in standing.items() if kept is not None}
        if self.entries or kept:
            self._write(self.entries, kept)
        elif self.standing:
            self._remove_for_good()
        super().stand(knob, value)

    def clocks_freed(self) -> None:
        """As ``Memory.clocks_freed``: a new file says so, and the lost one is put aside for people."""
        if self.clocks_locked:
            with suppress(NotSaved):
                unknown = f"{self.unknown.partition('; ')[0]}, kept as {self._free_name().name}"
                self._write({}, {}, unknown)
                self.unknown = in_words(Contents(unknown=unknown), self._path)
        super().clocks_freed()

    def set_aside(self) -> None:
        """As ``Memory.set_aside``. NotSaved if the file cannot be moved."""
        if self.unknown:
            self._remove_for_good()
        super().set_aside()

    def close(self) -> None:
        """Let go of the file and its locks. Idempotent."""
        for number, lock in enumerate(self._locks):
            if number > 0 and not (self.entries or self.unknown):
                lock.sign()  # nothing is owed here: whoever is next need not look
            lock.release()
        self.drop()

    def drop(self) -> None:
        """In a forked child: the file and its locks are the parent's, so let go without unlocking."""
        self._close_file()
        for lock in self._locks:
            lock.drop()
        self._locks.clear()
        _open.discard(self)

    # The file.

    def _load(self) -> None:
        said = read(self._path, self.uuid)
        if said is None:
            return
        self.entries, self.standing, self.damage = said.entries, said.standing, said.damage
        self._length, self._lines, self._checksum = said.length, said.lines, said.checksum
        self._anew = bool(said.damage) or said.version != VERSION
        if said.unknown:
            self.clocks_locked = said.ours and bool(said.damage)
            self.unknown = in_words(said, self._path)
        if self._anew or self.unknown:
            return
        try:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            # Read only: what is in it can still be restored, and new leases will be refused.
            if not self.entries and not self.standing:
                raise _not_saved(self._directory, error) from None

    def _check_known(self) -> None:
        if self.unknown:
            raise NotSaved(f"nothing is set: {self.unknown}", owed=True)

    def _write(self, entries: Mapping[str, Entry], standing: Mapping[str, float], unknown: str = "") -> None:
        """A new file with one snapshot, durable on return. NotSaved if that fails; the old file is then as it was."""
        record = {
            "joulewise": VERSION,
            "gpu": self.uuid,
            "entries": [asdict(entry) for entry in entries.values()],
            "standing": dict(standing),
            **({"unknown": unknown} if unknown else {}),
        }
        line, checksum = to_line(json.dumps(record, allow_nan=False))
        aside = self._directory / f"{self.uuid}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = -1
        try:
            fd = os.open(aside, flags, mode=0o600)
            _write_all(fd, line + end_line(checksum), 0)
            os.fsync(fd)
            if self.damage:
                self._keep_for_people()
            aside.rename(self._path)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            with suppress(OSError):
                aside.unlink()
            raise _not_saved(self._directory, error) from None
        self._close_file()  # the old one, which has no name any more
        self._fd, self._length, self._lines, self._checksum = fd, len(line), 1, checksum
        self.damage, self._anew = "", False
        try:
            _sync_directory(self._directory)
        except OSError as error:
            raise _not_saved(self._directory, error) from None

    def _append(self, body: str) -> None:
        """One more line in the place of the end, and the end after it."""
        line, checksum = to_line(body, self._checksum)
        if self._fd < 0:
            raise NotSaved(f"{self._path} cannot be written, so nothing was set; see that its directory can be")
        try:
            _write_all(self._fd, line + end_line(checksum), self._length)
        except OSError as error:
            # A part of a line must not stay; should the end not come back either, the file counts as cut here.
            end = end_line(self._checksum)
            with suppress(OSError):
                os.pwrite(self._fd, end, self._length)
                os.ftruncate(self._fd, self._length + len(end))
            raise _not_saved(self._directory, error) from None
        self._length += len(line)
        self._lines += 1
        self._checksum = checksum

    def _remove(self) -> None:
        self._close_file()
        with suppress(OSError):  # read only by now: looked at once more after a restart, and found undone
            self._unlink()

    def _remove_for_good(self) -> None:
        """As ``_remove``, but durable on return, or NotSaved."""
        try:
            self._unlink()
            _sync_directory(self._directory)
        except OSError as error:
            raise _not_saved(self._directory, error) from None
        self._close_file()

    def _unlink(self) -> None:
        """Take the file's name away; a damaged one gets another."""
        if self.damage:
            self._path.rename(self._free_name())
            self.damage = ""
        else:
            self._path.unlink(missing_ok=True)
        self._anew = False

    def _keep_for_people(self) -> None:
        """A second name for a damaged file that is about to be replaced; one that cannot have any is not kept."""
        with suppress(OSError):
            os.link(self._path, self._free_name(), follow_symlinks=False)

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._length = self._lines = self._checksum = 0

    def _free_name(self) -> Path:
        names = (self._directory / f"{self._path.name}.corrupt-{number}" for number in itertools.count(1))
        return next(name for name in names if not os.path.lexists(name))


_open: weakref.WeakSet[Saved] = weakref.WeakSet()


def _after_fork() -> None:
    """In a forked child: the files are the parent's; holding on to its locks would outlive it."""
    for saved in list(_open):
        saved.drop()


os.register_at_fork(after_in_child=_after_fork)


def _write_all(fd: int, data: bytes, offset: int) -> None:
    written = os.pwrite(fd, data, offset)
    if written < len(data):  # a full disk takes a part: the rest says why
        os.pwrite(fd, data[written:], offset + written)
        raise OSError(28, "only a part could be written")  # ENOSPC: two writes are not one act


def _is_uuid(name: str) -> bool:
    with suppress(ValueError):
        return bool(to_uuid(name))
    return False


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _not_saved(directory: Path, error: OSError) -> NotSaved:
    return NotSaved(
        f"what is set now cannot be kept safe in {directory} ({error.strerror or error}), so nothing was set; "
        "free its disk, or name another place with --state"
    )
