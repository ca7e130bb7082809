"""Damaged files of saved settings: is a GPU ever left as a killed lease had set it, with nobody told?

Each case is a lease that was killed while it was open (drawn: which knobs, what it had set, how far it had come), a
damage to what it left on disk (drawn: its kind and its place), and then ``restore``, twice. A case is *silent* if the
GPU still shows what the lease had set and nothing says so: ``restore`` does not fail for that GPU, or the list of
leases does not name it. Most cases run in this process, on virtual GPUs; ``PROCESSES`` of them through leases, daemons
and ``joulewise restore`` in processes of their own, on the virtual NVML.

Figures: ``journal_cases``; ``journal_silent``; ``journal_restored``, in which all of it came back; ``journal_owed``, in
which something is owed until somebody sees to it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulewise.cli import records
from joulewise.core.knob import Setting
from joulewise.core.timeline import VirtualTime
from joulewise.device.controls import CLOCKS, LIMIT
from joulewise.device.keeper import Keeper
from joulewise.device.lease import Ending, Owner
from joulewise.device.node import RunningNode, spawn
from joulewise.device.rescue import rescue
from joulewise.device.saved import Saved
from joulewise.device.saved_lines import from_line, to_line
from joulewise.device.virtual import VirtualGpu
from joulewise.device.virtual_controls import VirtualControls
from joulewise.device.vnvml_layout import VnvmlState
from joulewise.model import catalog

CASES = 2000
PROCESSES = 64
GPUS = 8
"""Of one simulator in the part with processes of their own."""
SHM = Path("/dev/shm")  # no case is about a death of the machine, so nothing need reach a disk


@dataclass(frozen=True, slots=True)
class Files:
    """The file that is damaged, and another GPU's, each with what it holds."""

    path: Path
    raw: bytes
    other: Path
    others: bytes


Damage = Callable[[random.Random, Files], None]


def figures(seed: int) -> dict[str, float]:
    """The part of the bench; see the module."""
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="joulewise-", dir=SHM if SHM.is_dir() else None) as folder:
        desk = Desk(Path(folder))
        for number in range(CASES):
            outcomes.update(desk.trial(random.Random(rng.random()), list(DAMAGES)[number % len(DAMAGES)]))
    for number in range(0, PROCESSES, GPUS):
        outcomes.update(in_processes(random.Random(rng.random()), daemon=bool(number // GPUS % 2)))
    return {
        "journal_cases": float(sum(outcomes.values())),
        "journal_silent": float(outcomes["silent"]),
        "journal_restored": float(outcomes["restored"]),
        "journal_owed": float(outcomes["owed"]),
    }


# ---- what may happen to a file --------------------------------------------------------------------------------------


def _lines(raw: bytes) -> list[bytes]:
    return raw.splitlines(keepends=True)


def _bytes(change: Callable[[random.Random, bytes], bytes]) -> Damage:
    """A damage to what the file holds; drawn again if it changes nothing."""

    def damage(rng: random.Random, files: Files) -> None:
        changed = files.raw
        while changed == files.raw:
            changed = change(rng, files.raw)
        files.path.write_bytes(changed)

    return damage


def _part(rng: random.Random, raw: bytes, *, most: int = 200) -> tuple[int, int]:
    begin = rng.randrange(len(raw))
    return begin, min(len(raw), begin + rng.randint(1, most))


def _flip(rng: random.Random, raw: bytes) -> bytes:
    place = rng.randrange(len(raw))
    return raw[:place] + bytes([raw[place] ^ 1 << rng.randrange(8)]) + raw[place + 1 :]


def _noise(rng: random.Random, raw: bytes) -> bytes:
    begin, end = _part(rng, raw)
    return raw[:begin] + rng.randbytes(end - begin) + raw[end:]


def _zeros(rng: random.Random, raw: bytes) -> bytes:
    begin, end = _part(rng, raw)
    return raw[:begin] + bytes(end - begin) + raw[end:]


def _zero_end(rng: random.Random, raw: bytes) -> bytes:
    begin = rng.randrange(len(raw))
    return raw[:begin] + bytes(len(raw) - begin + rng.choice((0, 100, 4096)))


def _cut_line(rng: random.Random, raw: bytes) -> bytes:
    lines = _lines(raw)
    return b"".join(lines[: rng.randrange(len(lines))])


def _left_out(rng: random.Random, raw: bytes) -> bytes:
    lines = _lines(raw)
    del lines[rng.randrange(len(lines))]
    return b"".join(lines)


def _twice(rng: random.Random, raw: bytes) -> bytes:
    lines = _lines(raw)
    lines.insert(rng.randint(0, len(lines)), rng.choice(lines))
    return b"".join(lines)


def _swapped(rng: random.Random, raw: bytes) -> bytes:
    lines = _lines(raw)
    one, two = (rng.randrange(len(lines)) for _ in range(2))
    lines[one], lines[two] = lines[two], lines[one]
    return b"".join(lines) if one != two else raw[:-1]


def _shuffled(rng: random.Random, raw: bytes) -> bytes:
    lines = _lines(raw)
    rng.shuffle(lines)
    return b"".join(lines) if len(lines) > 1 else raw[:-1]


def _number_changed(rng: random.Random, raw: bytes) -> bytes:
    """Somebody has edited a digit, without the checksum."""
    digits = [place for place, byte in enumerate(raw) if chr(byte).isdigit()]
    place = rng.choice(digits)
    return raw[:place] + str(rng.randrange(10)).encode() + raw[place + 1 :]


def _version(rng: random.Random, raw: bytes) -> bytes:
    record, _ = from_line(_lines(raw)[0].removesuffix(b"\n"))
    record["joulewise"] = rng.choice((0, -1, 3, 99, "2", None, 2.5, True))
    return b"".join([to_line(json.dumps(record))[0], *_lines(raw)[1:]])


def _foreign_lines(rng: random.Random, files: Files) -> None:
    lines, theirs = _lines(files.raw), _lines(files.others)
    lines[rng.randrange(len(lines))] = rng.choice(theirs)
    files.path.write_bytes(b"".join(lines) + rng.choice(theirs))


def _files_swapped(_: random.Random, files: Files) -> None:
    files.path.write_bytes(files.others)
    files.other.write_bytes(files.raw)


def _link(target: str) -> Damage:
    def damage(_: random.Random, files: Files) -> None:
        elsewhere = files.path.with_suffix(".elsewhere")
        elsewhere.write_bytes(files.raw)
        files.path.unlink()
        files.path.symlink_to(target or elsewhere)

    return damage


def _huge(rng: random.Random, files: Files) -> None:
    with files.path.open("r+b") as file:
        file.truncate(rng.choice((8 << 20, 1 << 40)))


def _folder(_: random.Random, files: Files) -> None:
    files.path.unlink()
    files.path.mkdir()


def _pipe(_: random.Random, files: Files) -> None:
    files.path.unlink()
    os.mkfifo(files.path)


def _open_to_all(_: random.Random, files: Files) -> None:
    files.path.chmod(0o666)


DAMAGES: Mapping[str, Damage] = {
    "a flipped bit": _bytes(_flip),
    "noise": _bytes(_noise),
    "zeros": _bytes(_zeros),
    "zeros to the end": _bytes(_zero_end),
    "cut at a byte": _bytes(lambda rng, raw: raw[: rng.randrange(len(raw))]),
    "cut between lines": _bytes(_cut_line),
    "no newline at the end": _bytes(lambda _, raw: raw[:-1]),
    "empty": _bytes(lambda _, __: b""),
    "a line left out": _bytes(_left_out),
    "a line twice": _bytes(_twice),
    "lines swapped": _bytes(_swapped),
    "lines shuffled": _bytes(_shuffled),
    "a digit changed": _bytes(_number_changed),
    "another version": _bytes(_version),
    "ends of lines as in DOS": _bytes(lambda _, raw: raw.replace(b"\n", b"\r\n")),
    "something before": _bytes(
        lambda rng, raw: rng.choice((b"\xef\xbb\xbf", b"\n", b"# kept\n", rng.randbytes(9))) + raw
    ),
    "something after": _bytes(lambda rng, raw: raw + rng.choice((b"\n", b"[]\n", bytes(50), rng.randbytes(40)))),
    "lines of another file": _foreign_lines,
    "files swapped": _files_swapped,
    "a link": _link(""),
    "a link to nothing": _link("/nowhere/at/all"),
    "a link to a device": _link("/dev/zero"),
    "huge": _huge,
    "a folder": _folder,
    "a pipe": _pipe,
    "open to all": _open_to_all,
}


# ---- in this process ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Left:
    """What a killed lease has left of one GPU."""

    raw: bytes
    before_w: float
    shows: Setting
    stands: Setting
    """Clocks that joulewise was told to keep, where the lease has none."""


class Desk:
    """Two virtual GPUs, and a folder for what is saved of them."""

    def __init__(self, folder: Path) -> None:
        self._time = VirtualTime(100.0)
        models = (catalog.load("h200"), catalog.load("a100"))
        gpus = [VirtualGpu(model, time=self._time, index=index) for index, model in enumerate(models)]
        self._controls = [VirtualControls(gpu) for gpu in gpus]
        self._folder = folder

    def trial(self, rng: random.Random, kind: str) -> list[str]:
        """One killed lease, one damage of that ``kind``, two restores: how that went for each GPU that it concerns."""
        if self._folder.exists():
            shutil.rmtree(self._folder)
        self._folder.mkdir(mode=0o700)
        left = [self._killed(rng, controls) for controls in self._controls]
        paths = [self._folder / f"{controls.uuid}.jsonl" for controls in self._controls]
        DAMAGES[kind](rng, Files(paths[0], left[0].raw, paths[1], left[1].raw))
        concerned = (0, 1) if kind == "files swapped" else (0,)
        first = [self._restored(self._controls[index], left[index]) for index in concerned]
        again = [self._restored(self._controls[index], left[index]) for index in concerned]
        # What was restored is restored, and what is owed is owed the second time, too.
        return [one if one == two else "silent" for one, two in zip(first, again, strict=True)]

    def _killed(self, rng: random.Random, controls: VirtualControls) -> Left:
        """A lease that is killed somewhere in its life."""
        knobs = rng.choice(((LIMIT,), (LIMIT, "sm_mhz"), (LIMIT, "sm_mhz", "memory_mhz"), ("sm_mhz",)))
        limits = controls.space.knobs[LIMIT]
        for knob in CLOCKS:
            controls.reset(knob)
        before_w = float(rng.randint(int(limits.low), int(limits.high)))
        controls.write(LIMIT, before_w)
        saved = Saved.open(self._folder, controls.uuid)
        keeper = Keeper(controls, saved)
        stands = Setting()
        if rng.random() < 0.3:
            stands = Setting(sm_mhz=controls.space.knobs["sm_mhz"].at_most(1200.0))
            keeper.stand("sm_mhz", stands["sm_mhz"])
        keeper.take(knobs, Owner("lease-1", 1000, os.getpid(), "train.py", reason="r" * rng.choice((0, 10, 5000))))
        for _ in range(rng.randint(1, 6)):
            self._time.sleep(1.0)
            keeper.apply(_drawn(rng, controls, rng.sample(knobs, rng.randint(1, len(knobs)))), knobs)
        if rng.random() < 0.2:
            keeper.restore(rng.sample(knobs, rng.randint(0, len(knobs) - 1)))
        if rng.random() < 0.2 and LIMIT in saved.entries:  # between the announcement and the act
            saved.intend(LIMIT, float(rng.randint(int(limits.low), int(limits.high))), controls.value(LIMIT))
        saved.close()
        path = self._folder / f"{controls.uuid}.jsonl"
        if rng.random() < 0.25:
            path.write_bytes(as_version_1(path.read_bytes()))
        return Left(path.read_bytes(), before_w, controls.asked(), stands)

    def _restored(self, controls: VirtualControls, left: Left) -> str:
        """``joulewise restore`` and ``joulewise leases``, as far as this GPU is concerned."""
        given = rescue(self._folder, controls.uuid, controls=controls)
        failed = any(each.ending is Ending.FAILED for each in given)
        owed = {gpu for each in records.as_leases(records.records(self._folder), None) for gpu in each["gpus"]}
        return outcome(_still_set(controls.asked(), left), failed=failed, named=controls.uuid in owed)


def outcome(still_set: bool, *, failed: bool, named: bool) -> str:
    """What came of one GPU: "restored", "owed" (and everybody is told) or "silent"."""
    if failed and named:
        return "owed"
    return "silent" if still_set else "restored"


def _still_set(shows: Setting, left: Left) -> bool:
    if shows.get(LIMIT, left.before_w) != left.before_w:
        return True
    return any(shows.get(knob) not in (None, left.stands.get(knob)) for knob in CLOCKS)


def _drawn(rng: random.Random, controls: VirtualControls, knobs: list[str]) -> Setting:
    values = {}
    for knob in knobs:
        choices = controls.space.knobs[knob]
        values[knob] = choices.at_most(rng.uniform(choices.low, choices.high)) if knob in CLOCKS else rng.uniform(
            choices.low, choices.high
        )  # fmt: skip
    return Setting(**values)


def as_version_1(raw: bytes) -> bytes:
    """A whole file of this version as the first version would have written it."""
    lines, checksum = [], 0
    for line in _lines(raw)[:-1]:  # without its end
        record, checksum = from_line(line.removesuffix(b"\n"), checksum)
        if "joulewise" in record:
            record["joulewise"] = 1
            for entry in record["entries"]:
                del entry["unsure"]
        lines.append(to_line(json.dumps(record))[0])
    return b"".join(lines)


# ---- in processes of their own --------------------------------------------------------------------------------------

KILLED = """
import json, os, signal, sys
from pathlib import Path
from joulewise.core.knob import Setting
from joulewise.device.local import LocalLease
from joulewise.device.nvml_controls import NvmlControls
for uuid, settings in json.loads(sys.argv[2]).items():
    lease = LocalLease.take([NvmlControls(uuid)], list(settings[0]), state=Path(sys.argv[1]), guard=False)
    for setting in settings:
        lease.apply(Setting(**setting))
os.kill(os.getpid(), signal.SIGKILL)
"""


def in_processes(rng: random.Random, *, daemon: bool) -> list[str]:
    """Eight killed leases with one damage each, in processes of their own, given back by ``restore`` or by a daemon."""
    before_w = 650.0
    with tempfile.TemporaryDirectory(prefix="joulewise-") as name, spawn(f"sim:h200*{GPUS}") as node:
        folder, state = Path(name), Path(name) / "state"
        with node.client() as client:
            uuids = client.uuids
            for index in range(GPUS):
                client.fault(index, "foreign", power_limit_w=before_w)
        drawn = [[{LIMIT: rng.randint(250, 600), "sm_mhz": 1200} for _ in range(rng.randint(1, 3))] for _ in uuids]
        killed = dict(zip(uuids, drawn, strict=True))
        subprocess.run([sys.executable, "-c", KILLED, str(state), json.dumps(killed)], env=node.environment())
        kinds = rng.sample([kind for kind in DAMAGES if kind != "files swapped"], GPUS)
        raws = {uuid: (state / f"{uuid}.jsonl").read_bytes() for uuid in uuids}
        for uuid, other, kind in zip(uuids, (*uuids[1:], uuids[0]), kinds, strict=True):
            paths = [state / f"{each}.jsonl" for each in (uuid, other)]
            DAMAGES[kind](rng, Files(paths[0], raws[uuid], paths[1], raws[other]))
        told = _by_daemon(node, folder) if daemon else _by_restore(node, folder)
        words = VnvmlState.open(node.directory)
        shown = [words.read_control(index) for index in range(GPUS)]
        words.close()
    still = [each.power_limit_mw != 1000 * before_w or each.sm_lock_mhz is not None for each in shown]
    return [outcome(left, failed=uuid in told, named=uuid in told) for uuid, left in zip(uuids, still, strict=True)]


def _by_restore(node: RunningNode, folder: Path) -> set[str]:
    """GPUs for which the second ``joulewise restore`` still fails and which ``joulewise leases`` names."""
    for _ in range(2):
        code, said = _joulewise(node, folder, "restore")
    failed = {each["gpu"] for each in said["restored"] if each["ending"] == "failed"}
    return failed & _owed(node, folder) if code else set()


def _by_daemon(node: RunningNode, folder: Path) -> set[str]:
    """GPUs that a daemon says it owes, from its first line on, and for which ``joulewise restore`` fails."""
    paths = {"--state": "state", "--socket": "run/daemon.sock", "--grants": "grants", "--audit": "audit.jsonl"}
    words = [word for flag, path in paths.items() for word in (flag, str(folder / path))]
    reads, writes = os.pipe()
    with (folder / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "joulewise.daemon", *words, "--ready-fd", str(writes)],
            env=node.environment(), pass_fds=(writes,), stderr=stderr,
        )  # fmt: skip
    os.close(writes)
    try:
        with os.fdopen(reads) as ready:
            ready.read()  # it has given back what it could by then
        code, said = _joulewise(node, folder, "restore")
        pending = set(said["pending"]) | {each["gpu"] for each in said["restored"] if each["ending"] == "failed"}
        first = (folder / "stderr").read_text()
        named = {uuid for uuid in _owed(node, folder) if uuid in first}
        return pending & named if code else set()
    finally:
        process.terminate()
        process.wait()


def _owed(node: RunningNode, folder: Path) -> set[str]:
    _, said = _joulewise(node, folder, "leases")
    return {gpu for lease in said["leases"] if lease["stage"] == "owed" for gpu in lease["gpus"]}


def _joulewise(node: RunningNode, folder: Path, verb: str) -> tuple[int, dict[str, Any]]:
    flags = ["--state", str(folder / "state"), "--socket", str(folder / "run" / "daemon.sock"), "--json"]
    ran = subprocess.run(
        [sys.executable, "-m", "joulewise", verb, *flags], env=node.environment(), stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    said: dict[str, Any] = json.loads(ran.stdout)
    return ran.returncode, said
