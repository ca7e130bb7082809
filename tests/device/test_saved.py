"""The file of what was there: durable, torn, corrupt, on full and read-only disks, and with two who want it."""

from __future__ import annotations

import json
import os
import resource
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


def test_a_torn_last_line_had_not_begun(tmp_path: Path) -> None:
    with opened(tmp_path) as saved:
        saved.save(entry())
        saved.intend("power_limit_w", 300.0, 612.345)
    path = tmp_path / f"{GPU}.jsonl"
    whole = path.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    for cut in range(1, len(last) + 1):
        path.write_bytes(whole[:-cut])
        with opened(tmp_path) as saved:
            assert saved.quarantined is None
            assert saved.entries["power_limit_w"].wrote == ()
            saved.intend("power_limit_w", 250.0, 612.345)  # goes on a line of its own
        with opened(tmp_path) as saved:
            assert saved.entries["power_limit_w"].wrote == (250.0,)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_no_flipped_byte_is_ever_taken_for_a_value(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with opened(directory) as saved:
            saved.save(entry(), entry("sm_mhz", None))
            saved.intend("power_limit_w", 300.0, 612.345)
            saved.intend("sm_mhz", 1200.0)
        path = directory / f"{GPU}.jsonl"
        raw = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, 10_000)) % len(raw)
        raw[place] ^= data.draw(st.integers(1, 255))
        path.write_bytes(raw)
        with opened(directory) as saved:
            if saved.quarantined is None:  # only a last newline that is gone can pass: a torn line
                assert place == len(raw) - 1
                assert saved.entries["power_limit_w"].before == 612.345
                assert saved.entries["sm_mhz"].wrote == ()
            else:
                assert saved.entries == {}
                aside = saved.quarantined
                assert path.read_bytes() == raw
                with pytest.raises(NotSaved, match="unreadable"):
                    saved.save(entry())
                saved.set_aside()
                assert aside.read_bytes() == raw
                assert not path.exists()
                saved.save(entry())  # life goes on


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"{}\n", b"not json\n", b"\xff\xfe\n", b"\0" * 100 + b"\n", b'["00000000",{}]\n', b"[" * 5000 + b"\n"],
)
def test_a_corrupt_file_stays_until_it_is_set_aside_and_the_start_goes_on(tmp_path: Path, content: bytes) -> None:
    for number in (1, 2):
        (tmp_path / f"{GPU}.jsonl").write_bytes(content)
        for done in (False, True):
            with opened(tmp_path) as saved:
                assert saved.quarantined == tmp_path / f"{GPU}.jsonl.corrupt-{number}"
                assert saved.entries == {}
                assert Saved.known(tmp_path) == (GPU,)
                if done:
                    saved.set_aside()
    assert Saved.known(tmp_path) == ()


def test_a_file_from_before_entries_had_a_base_is_read(tmp_path: Path) -> None:
    with opened(tmp_path) as saved:
        saved.save(entry("sm_mhz", None))
    path = tmp_path / f"{GPU}.jsonl"
    record = from_line(path.read_text().removesuffix("\n"))
    assert record["entries"][0].pop("base") is None
    path.write_bytes(to_line(json.dumps(record)))
    with opened(tmp_path) as saved:
        assert saved.quarantined is None
        assert saved.entries["sm_mhz"].base is None
    record["entries"][0]["base"] = "1500"
    path.write_bytes(to_line(json.dumps(record)))
    with opened(tmp_path) as saved:
        assert saved.quarantined is not None


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
    assert saved.quarantined is not None
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
        assert saved.quarantined is None
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


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_others_could_have_written_is_not_believed(tmp_path: Path, what: str) -> None:
    saved = Saved.open(tmp_path, GPU)
    saved.save(Entry.new("power_limit_w", 650.0, OWNER, None))
    saved.close()
    (tmp_path if what == "folder" else tmp_path / f"{GPU}.jsonl").chmod(0o777)
    with pytest.raises(NotSaved, match="not trusted: its mode 0777 lets others write"):
        Saved.open(tmp_path, GPU)
    tmp_path.chmod(0o700)
