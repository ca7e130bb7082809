"""One process per node polls a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from joulewise.monitor.owner import Ownership, local_rank, lock_directory


@contextmanager
def another_process(directory: Path, code: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has an Ownership of "GPU-1" as ``own``, runs ``code`` and then waits for its input to end."""
    script = f"""
        import sys
        from pathlib import Path
        from joulewise.monitor.owner import Ownership
        own = Ownership("GPU-1", directory=Path({str(directory)!r}), environ={{}})
        {code}
        print("ready", flush=True)
        sys.stdin.read()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def mine(directory: Path, uuid: str = "GPU-1") -> Ownership:
    return Ownership(uuid, directory=directory, environ={})


def test_only_one_process_owns_a_gpu_and_another_takes_over_when_it_is_killed(tmp_path: Path) -> None:
    with another_process(tmp_path, "assert own.take()") as process:
        own = mine(tmp_path)
        assert not own.take()
        assert mine(tmp_path, "GPU-2").take()
        process.kill()
        process.wait()
        assert own.take()
        assert own.held
        own.leave()


def test_what_was_left_can_be_taken(tmp_path: Path) -> None:
    own, other = mine(tmp_path), mine(tmp_path)
    assert own.take()
    assert not other.take()
    own.leave()
    assert not own.held
    assert other.take()
    other.leave()


def test_a_forked_child_neither_keeps_nor_drops_its_parents_lock(tmp_path: Path) -> None:
    own, other = mine(tmp_path), mine(tmp_path)
    assert own.take()
    child = os.fork()
    if child == 0:
        own.abandon()
        os._exit(0)
    os.waitpid(child, 0)
    assert not other.take()
    own.leave()
    assert other.take()
    other.leave()


def test_where_no_lock_file_can_be_made_everybody_polls(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    own = mine(tmp_path / "file" / "below")
    assert own.take()
    assert own.held


def test_a_link_in_place_of_the_lock_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    own = mine(tmp_path / "locks")
    own.path.parent.mkdir()
    own.path.symlink_to(victim)
    assert own.take()
    assert not victim.exists()


def test_simulators_with_equal_uuids_have_locks_of_their_own(tmp_path: Path) -> None:
    one = Ownership("GPU-1", directory=tmp_path, environ={"JOULEWISE_VNVML": "/run/a"})
    two = Ownership("GPU-1", directory=tmp_path, environ={"JOULEWISE_VNVML": "/run/b"})
    assert one.path != two.path


@pytest.mark.parametrize(
    ("environ", "rank"),
    [({}, 0), ({"LOCAL_RANK": "3"}, 3), ({"SLURM_LOCALID": "2"}, 2), ({"LOCAL_RANK": "x", "SLURM_LOCALID": "1"}, 1)],
)
def test_the_local_rank_is_found_in_torchrun_and_slurm_variables(environ: dict[str, str], rank: int) -> None:
    assert local_rank(environ) == rank


def test_lock_files_live_in_a_directory_of_the_users_own(tmp_path: Path) -> None:
    directory = lock_directory({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert directory.parent == tmp_path
    assert str(os.getuid()) in directory.name
