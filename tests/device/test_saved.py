"""The file of what was there: durable, torn, corrupt, on full and read-only disks, and with two who want it."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec, LeaseTaken, NotSaved
from joulewise.device.lease import Owner
from joulewise.device.saved import _MOST_LINES, Entry, Memory, Saved, boot_id
from joulewise.device.saved_lines import from_line, to_line

GPU = "GPU-00000000-aaaa-bbbb-cccc-dddddddddddd"
VERSION_1 = Path(__file__).with_name("saved_version_1")
"""As the first version wrote it: a lease that was killed with everything set, beside a lock that stands."""
OWNER = Owner("lease-1", 1000, 4242, "python train.py", 77, "a reason with \u2028 and \n in it")


def entry(knob: str = "power_limit_w", before: float | None = 612.345) -> Entry:
    return Entry.new(knob, before, OWNER, 12.5)


@contextmanager
def opened(directory: Path) -> Iterator[Saved]:
    saved = Saved.open(directory, GPU)
    try:
        yield saved
    finally:
        saved.close()


def test_what_is_saved_is_there_for_the_next_process(tmp_path: Path) -> None:
    with opened(tmp_path) as saved:
        limit, clock = entry(), entry("sm_mhz", None)
        saved.save(limit, clock)
        saved.intend("power_limit_w", 300.1, 612.345)
        saved.intend("sm_mhz", 1200.0)
    with opened(tmp_path) as saved:
        assert saved.entries["power_limit_w"].wrote == (300.1,)
        assert saved.entries["sm_mhz"].wrote == (1200.0,)
        assert saved.entries["power_limit_w"].before == 612.345
        assert saved.entries["sm_mhz"].before is None
        assert saved.entries["power_limit_w"].owner == OWNER
        assert saved.entries["power_limit_w"].boot == boot_id() != ""
        assert saved.entries["power_limit_w"].counter_j == 12.5


def test_a_file_means_that_something_is_owed(tmp_path: Path) -> None:
    with opened(tmp_path) as saved:
        assert Saved.known(tmp_path) == ()
        saved.save(entry(), entry("sm_mhz", None))
        assert Saved.known(tmp_path) == (GPU,)
        saved.forget("sm_mhz")
        assert Saved.known(tmp_path) == (GPU,)
        saved.forget("power_limit_w")
        assert Saved.known(tmp_path) == ()
    assert Saved.known(tmp_path / "nowhere") == ()


def test_what_stands_stays_between_leases_until_it_is_told_not_to(tmp_path: Path) -> None:
    with opened(tmp_path) as saved:
        saved.stand("sm_mhz", 1500.0)
        saved.save(entry())
        saved.forget("power_limit_w")
    with opened(tmp_path) as saved:
        assert saved.standing == {"sm_mhz": 1500.0}
        assert saved.entries == {}
        saved.stand("sm_mhz", None)
    assert Saved.known(tmp_path) == ()


def test_only_the_value_in_force_and_the_one_to_be_written_are_remembered() -> None:
    memory = Memory()
    memory.save(entry())
    memory.intend("power_limit_w", 300.0, 612.345)  # over what was there: not ours
    assert memory.entries["power_limit_w"].wrote == (300.0,)
    memory.intend("power_limit_w", 400.0, 300.0)
    assert memory.entries["power_limit_w"].wrote == (300.0, 400.0)
    memory.intend("power_limit_w", 500.0, 300.0)  # 400 never came to be
    assert memory.entries["power_limit_w"].wrote == (300.0, 500.0)
    memory.intend("power_limit_w", 450.0)  # nobody looked: all stay possible
    assert memory.entries["power_limit_w"].wrote == (300.0, 500.0, 450.0)


def kept_file(directory: Path) -> bytes:
    """The file of a lease on a limit and a clock, that has set both."""
    with opened(directory) as saved:
        saved.save(entry(), entry("sm_mhz", None))
        saved.intend("power_limit_w", 300.0, 612.345)
        saved.intend("sm_mhz", 1200.0)
        saved.intend("power_limit_w", 250.0, 300.0)
    return (directory / f"{GPU}.jsonl").read_bytes()


def test_wherever_a_file_is_cut_that_is_noticed_and_what_precedes_the_cut_is_believed(tmp_path: Path) -> None:
    whole = kept_file(tmp_path)
    path = tmp_path / f"{GPU}.jsonl"
    snapshot = whole.index(b"\n")
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with opened(tmp_path) as saved:
            assert saved.damage
            assert bool(saved.unknown) == (length < snapshot)
            if saved.unknown:
                assert saved.entries == {}
                continue
            assert {each.unsure for each in saved.entries.values()} == {True}
            assert saved.entries["power_limit_w"].before == 612.345
            assert saved.entries["power_limit_w"].wrote in ((), (300.0,), (300.0, 250.0))
    assert sum(1 for _ in tmp_path.iterdir()) == 2  # looking leaves nothing behind


def test_a_cut_file_is_gone_on_with_in_a_new_one_and_kept_for_people(tmp_path: Path) -> None:
    path = tmp_path / f"{GPU}.jsonl"
    cut = kept_file(tmp_path)[:-30]
    path.write_bytes(cut)
    with opened(tmp_path) as saved:
        saved.forget("sm_mhz")
        assert (tmp_path / f"{GPU}.jsonl.corrupt-1").read_bytes() == cut
    with opened(tmp_path) as saved:
        assert (saved.damage, saved.unknown, set(saved.entries)) == ("", "", {"power_limit_w"})
        assert saved.entries["power_limit_w"].unsure
        saved.intend("power_limit_w", 400.0)
    with opened(tmp_path) as saved:
        assert saved.entries["power_limit_w"].wrote[-1] == 400.0
    path.write_bytes(cut)
    with opened(tmp_path) as saved:
        saved.forget("power_limit_w", "sm_mhz")
        assert (tmp_path / f"{GPU}.jsonl.corrupt-2").read_bytes() == cut
    assert Saved.known(tmp_path) == ()


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_no_flipped_byte_is_ever_taken_for_a_value(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        raw = bytearray(kept_file(directory))
        path = directory / f"{GPU}.jsonl"
        place = data.draw(st.integers(0, 10_000)) % len(raw)
        raw[place] ^= data.draw(st.integers(1, 255))
        path.write_bytes(raw)
        with opened(directory) as saved:
            assert saved.damage
            if saved.unknown:
                assert place <= raw.index(b"\n")
                assert saved.entries == {}
                with pytest.raises(NotSaved, match="is lost with"):
                    saved.save(entry())
                assert path.read_bytes() == raw
                saved.set_aside()
                assert not path.exists()
                saved.save(entry())  # life goes on
            else:
                limit, clock = saved.entries["power_limit_w"], saved.entries["sm_mhz"]
                assert (limit.before, limit.unsure, clock.unsure) == (612.345, True, True)
                assert limit.wrote in ((), (300.0,), (300.0, 250.0))
                assert clock.wrote in ((), (1200.0,))
                saved.save(entry())
            assert (directory / f"{GPU}.jsonl.corrupt-1").read_bytes() == raw


def lines_of(raw: bytes) -> list[bytes]:
    return raw.splitlines(keepends=True)


@pytest.mark.parametrize("what", ["twice", "swapped", "left out", "of another lease", "after the end"])
def test_lines_that_are_whole_but_not_in_their_place_are_noticed(tmp_path: Path, what: str) -> None:
    snapshot, first, second, third, end = lines_of(kept_file(tmp_path))
    other = lines_of(kept_file_of(tmp_path, 111.0))
    made = {
        "twice": [snapshot, first, first, second, third, end],
        "swapped": [snapshot, third, second, first, end],
        "left out": [snapshot, first, second, end],
        "of another lease": [snapshot, first, second, other[1], end],
        "after the end": [snapshot, first, second, third, end, first],
    }[what]
    (tmp_path / f"{GPU}.jsonl").write_bytes(b"".join(made))
    with opened(tmp_path) as saved:
        assert saved.damage
        assert saved.entries["power_limit_w"].before == 612.345
        assert saved.entries["power_limit_w"].unsure


def kept_file_of(directory: Path, before: float) -> bytes:
    """The file of another lease."""
    with opened(directory) as saved:
        saved.save(entry(before=before))
        saved.intend("power_limit_w", 222.0, before)
    return (directory / f"{GPU}.jsonl").read_bytes()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\n", b"{}\n", b"not json\n", b"\xff\xfe\n", b"\0" * 100, b"\0" * 100 + b"\n", b'["00000000",{}]\n',
        b"[" * 5000 + b"\n", to_line('{"joulewise":0}')[0], to_line('{"joulewise":true}')[0], to_line("[2]")[0],
    ],
)  # fmt: skip
def test_a_file_that_says_nothing_stays_and_nothing_is_saved_over_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / f"{GPU}.jsonl").write_bytes(content)
    for _ in range(2):
        with opened(tmp_path) as saved:
            assert f"'joulewise restore --forget {GPU}'" in saved.unknown
            assert saved.clocks_locked
            assert saved.entries == {}
            for act in (lambda: saved.save(entry()), lambda: saved.stand("sm_mhz", 1500.0)):
                with pytest.raises(NotSaved, match="nothing is set") as refused:
                    act()
                assert refused.value.owed
            saved.forget("power_limit_w")
        assert (tmp_path / f"{GPU}.jsonl").read_bytes() == content
    with opened(tmp_path) as saved:
        saved.clocks_freed()
    with opened(tmp_path) as saved:  # a file of ours that says the same, and where the other has gone
        assert (saved.clocks_locked, saved.damage) == (False, "")
        assert "corrupt-1" in saved.unknown
        assert (tmp_path / f"{GPU}.jsonl.corrupt-1").read_bytes() == content
        saved.set_aside()
        saved.save(entry())


def test_a_file_of_version_1_is_read_and_gone_on_with_in_this_version(tmp_path: Path) -> None:
    path = tmp_path / f"{GPU}.jsonl"
    path.write_bytes((VERSION_1 / path.name).read_bytes())
    path.chmod(0o600)
    with opened(tmp_path) as saved:
        assert (saved.damage, saved.unknown) == ("", "")
        limit, clock = saved.entries["power_limit_w"], saved.entries["sm_mhz"]
        assert (limit.before, limit.wrote, limit.owner.lease) == (650.0, (400.0, 300.0), "lease-3f2a01-7")
        assert (clock.before, clock.wrote) == (None, (1200.0,))
        assert saved.standing == {"memory_mhz": 1593.0}
        assert limit.unsure  # whether lines are missing at its end cannot be seen
        saved.forget("sm_mhz")
    assert not list(tmp_path.glob("*.corrupt-*"))  # it was not damaged
    with opened(tmp_path) as saved:
        assert (set(saved.entries), saved.standing) == ({"power_limit_w"}, {"memory_mhz": 1593.0})


def test_a_damaged_line_in_a_file_of_version_1_ends_what_is_believed(tmp_path: Path) -> None:
    lines = lines_of((VERSION_1 / f"{GPU}.jsonl").read_bytes())
    (tmp_path / f"{GPU}.jsonl").write_bytes(b"".join([*lines[:2], lines[2].replace(b"400.0", b"500.0"), *lines[3:]]))
    with opened(tmp_path) as saved:
        assert saved.damage == "its line 3 is damaged"
        assert set(saved.entries) == {"power_limit_w", "sm_mhz"}


def test_a_newer_version_is_left_as_it_is_until_somebody_says_otherwise(tmp_path: Path) -> None:
    path = tmp_path / f"{GPU}.jsonl"
    newer = to_line(json.dumps({"joulewise": 3, "gpu": GPU, "something": "new"}))[0] + b"unlike today\n"
    path.write_bytes(newer)
    with opened(tmp_path) as saved:
        assert "version 3" in saved.unknown
        assert not saved.clocks_locked  # it may yet tell where they belong
        saved.clocks_freed()
        with pytest.raises(NotSaved):
            saved.save(entry())
        assert path.read_bytes() == newer
        saved.set_aside()
    assert (tmp_path / f"{GPU}.jsonl.corrupt-1").read_bytes() == newer


@pytest.mark.parametrize(
    "kind", ["link", "broken link", "folder", "pipe", "device", "huge", "of somebody", "open to all"]
)
def test_what_is_no_file_of_ours_is_neither_followed_nor_believed_nor_touched(tmp_path: Path, kind: str) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    path, elsewhere = state / f"{GPU}.jsonl", tmp_path / "elsewhere"
    elsewhere.write_bytes(kept_file(tmp_path))
    (tmp_path / f"{GPU}.jsonl").unlink()
    if kind in ("link", "broken link"):
        path.symlink_to(elsewhere if kind == "link" else tmp_path / "nothing")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    else:
        shutil.copy(elsewhere, path)
        if kind == "open to all":
            path.chmod(0o666)
        elif os.geteuid() == 0:
            os.chown(path, 12345, 12345)
        else:
            pytest.skip("only root may give a file away")
    seen = os.lstat(path)
    saved = Saved.open(state, GPU)
    assert saved.unknown
    assert saved.entries == {}
    saved.close()
    assert os.lstat(path) == seen
    assert Saved.known(state) == (GPU,)
    saved = Saved.open(state, GPU)
    saved.set_aside()
    saved.close()
    assert Saved.known(state) == ()


def test_a_file_from_before_entries_had_a_base_is_read(tmp_path: Path) -> None:
    with opened(tmp_path) as saved:
        saved.save(entry("sm_mhz", None))
    path = tmp_path / f"{GPU}.jsonl"
    record, _ = from_line(path.read_bytes().splitlines()[0])
    record["joulewise"] = 1
    assert record["entries"][0].pop("base") is None
    path.write_bytes(to_line(json.dumps(record))[0])
    with opened(tmp_path) as saved:
        assert saved.damage == ""
        assert saved.entries["sm_mhz"].base is None
    record["entries"][0]["base"] = "1500"
    path.write_bytes(to_line(json.dumps(record))[0])
    with opened(tmp_path) as saved:
        assert saved.unknown


def test_what_stands_no_more_is_off_the_disk_or_it_stands(small_disk: Path) -> None:
    with opened(small_disk) as saved:
        saved.stand("sm_mhz", 1500.0)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with opened(small_disk) as saved:
        with pytest.raises(NotSaved, match="Read-only"):
            saved.stand("sm_mhz", None)
        assert saved.standing == {"sm_mhz": 1500.0}


def test_the_file_of_another_gpu_is_not_believed(tmp_path: Path) -> None:
    with opened(tmp_path) as saved:
        saved.save(entry())
    other = "GPU-11111111-aaaa-bbbb-cccc-dddddddddddd"
    (tmp_path / f"{GPU}.jsonl").rename(tmp_path / f"{other}.jsonl")
    saved = Saved.open(tmp_path, other)
    assert f"it is the file of {GPU}" in saved.unknown
    assert saved.entries == {}
    saved.close()


def test_a_name_that_could_be_a_path_is_refused(tmp_path: Path) -> None:
    for name in ("../etc/passwd", "", "a/b", ".hidden", "x" * 200):
        with pytest.raises(BadSpec):
            Saved.open(tmp_path, name)


def test_a_long_file_is_made_short_and_loses_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as saved:
        saved.save(entry())
        over = 612.345
        for turn in range(_MOST_LINES + 10):
            saved.intend("power_limit_w", 300.0 + turn % 7, over)
            over = 300.0 + turn % 7
        expected = saved.entries
    assert len((tmp_path / f"{GPU}.jsonl").read_bytes().splitlines()) < 100
    with opened(tmp_path) as saved:
        assert saved.entries == expected


HOLD = """
import sys
from pathlib import Path
from joulewise.core.errors import LeaseTaken
from joulewise.device.saved import Saved
sys.stdin.readline()
try:
    saved = Saved.open(Path(sys.argv[1]), sys.argv[2])
except LeaseTaken as error:
    print("taken", error, flush=True)
else:
    print("mine", flush=True)
sys.stdin.readline()
"""


@contextmanager
def rival(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that will want the GPU when it gets a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory), GPU], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        yield process
        process.kill()


def _tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_of_two_processes_one_gets_the_file_and_the_other_hears_who_has_it(tmp_path: Path) -> None:
    with rival(tmp_path) as one, rival(tmp_path) as other:
        for each in (one, other):
            _tell(each)
        said = {each.pid: _hear(each) for each in (one, other)}
        winner = next(pid for pid, line in said.items() if line == "mine\n")
        (loser,) = {one.pid, other.pid} - {winner}
        assert said[loser].startswith("taken")
        assert f"pid {winner}" in said[loser]


def test_the_death_of_its_owner_frees_the_file(tmp_path: Path) -> None:
    with rival(tmp_path) as process:
        _tell(process)
        assert _hear(process) == "mine\n"
        with pytest.raises(LeaseTaken, match=f"pid {process.pid}"):
            Saved.open(tmp_path, GPU)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        with opened(tmp_path) as saved:
            assert saved.entries == {}


def test_a_forked_child_holds_neither_file_nor_lock(tmp_path: Path) -> None:
    saved = Saved.open(tmp_path, GPU)
    waits, tells = os.pipe()
    up, says_up = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(tells)
        held = [str(path.resolve()) for path in Path("/proc/self/fd").iterdir()]
        os.write(says_up, b"1" if any(GPU in target for target in held) else b"0")
        os.read(waits, 1)  # lives until the parent says so
        os._exit(0)
    os.close(waits)
    try:
        assert os.read(up, 1) == b"0"
        with pytest.raises(LeaseTaken):  # the child has not let go of what is its parent's
            Saved.open(tmp_path, GPU)
        saved.close()
        with opened(tmp_path) as again:  # although the child lives
            assert again.entries == {}
    finally:
        for fd in (tells, up, says_up):
            os.close(fd)
        os.waitpid(pid, 0)


@contextmanager
def limited_files(size: int) -> Iterator[None]:
    """No file may grow beyond ``size``: to a writer, a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_on_a_full_disk_nothing_is_kept_and_it_says_so(tmp_path: Path) -> None:
    with opened(tmp_path) as saved:
        with limited_files(50), pytest.raises(NotSaved, match="cannot be kept safe"):
            saved.save(entry())
        assert saved.entries == {}
        assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
        saved.save(entry())
        size = (tmp_path / f"{GPU}.jsonl").stat().st_size
        with limited_files(size + 10), pytest.raises(NotSaved):  # the line fits in part
            saved.intend("power_limit_w", 300.0, 612.345)
        assert saved.entries["power_limit_w"].wrote == ()
        with limited_files(size), pytest.raises(NotSaved):
            saved.save(entry("sm_mhz", None))
        saved.intend("power_limit_w", 250.0, 612.345)
    with opened(tmp_path) as saved:
        assert saved.damage == ""
        assert saved.entries["power_limit_w"].wrote == (250.0,)
        with limited_files(1):
            saved.forget("power_limit_w")  # giving back needs no room
    assert Saved.known(tmp_path) == ()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root mounts")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", place], capture_output=True)
    if done.returncode:
        pytest.skip(f"only root with the right to mount: {done.stderr}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_disk_that_fills_and_one_that_turns_read_only(small_disk: Path) -> None:
    with opened(small_disk) as saved:
        saved.save(entry())
        with suppress(OSError), (small_disk / "ballast").open("wb") as ballast:
            while True:
                ballast.write(b"x" * 4096)
                ballast.flush()
        with pytest.raises(NotSaved, match="No space left"):
            saved.save(entry("sm_mhz", None))
        assert set(saved.entries) == {"power_limit_w"}
        (small_disk / "ballast").unlink()
        saved.intend("power_limit_w", 300.0, 612.345)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with opened(small_disk) as saved:  # what is owed can still be read, so that it can be given back …
        assert saved.entries["power_limit_w"].wrote == (300.0,)
        with pytest.raises(NotSaved):  # … and nothing more can be set
            saved.intend("power_limit_w", 250.0, 300.0)
        with pytest.raises(NotSaved, match="Read-only"):
            saved.save(entry("sm_mhz", None))
        saved.forget("power_limit_w")
    with pytest.raises(NotSaved):
        Saved.open(small_disk, "GPU-another")


def test_every_line_is_json_for_people_to_read(tmp_path: Path) -> None:
    with opened(tmp_path) as saved:
        saved.save(entry())
        saved.intend("power_limit_w", 300.0, 612.345)
        lines = (tmp_path / f"{GPU}.jsonl").read_text("ascii").splitlines()
    assert [json.loads(line)[1] for line in lines][1] == {"intend": ["power_limit_w", 300.0, 612.345]}


def test_what_is_in_a_folder_that_others_could_write_is_not_believed(tmp_path: Path) -> None:
    with opened(tmp_path) as saved:
        saved.save(entry())
    tmp_path.chmod(0o777)
    with pytest.raises(NotSaved, match="not trusted: its mode 0777 lets others write"):
        Saved.open(tmp_path, GPU)
    tmp_path.chmod(0o700)
