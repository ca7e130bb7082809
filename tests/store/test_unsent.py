"""What a run could not write, saved in a file and taken in later: nothing lost, nothing doubled, nothing believed."""

import logging
import os

import pytest

from joulewise.core.errors import NotKept
from joulewise.core.event import Began, Finished, Told
from joulewise.core.measurement import Outcome
from joulewise.store import Database, Memory, Sample, SqliteStore, unsent
from joulewise.store.unsent import Unsent

EVENTS = [Began(0.0, "run", {"command": ["train"]}), Finished(9.0, "ended", {"measured": {"energy_j": 1.0}})]
SAMPLES = {"GPU-1": [Sample(1.7e9 + second, power_w=300.0) for second in range(5)]}
TOLD = Told(1.0, 0, Outcome.REACHED, 3, 10.0, 100.0)
LEARNT = ("mark", "GPU-1", "H200", {"phases": {}})


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("JOULEWISE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def store(home):
    store = SqliteStore(Database(home / "joulewise.db"))
    yield store
    store.close()


def nobody(job, told):
    raise AssertionError("no result of a trial is expected")


def events(store, stream="run"):
    return [event for _, event in store.journal(stream).read()]


def test_everything_comes_back(store, home):
    results = []
    saved = Unsent("run", {"run": (0, EVENTS)}, SAMPLES, [LEARNT], {"nightly": [TOLD]})
    path = unsent.save(store, saved)
    assert (path.parent.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    assert unsent.take_in(store, lambda job, told: results.append((job, told))) == ["run"]
    assert events(store) == EVENTS
    assert len(store.readings().read("run", "GPU-1").time_s) == 5
    memory = Memory(Database())
    assert memory.recall("mark", "GPU-1", "H200").payload == LEARNT[3]
    memory.database.close()
    assert results == [("nightly", TOLD)]
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize("written", [0, 1, 2])
def test_taking_in_twice_doubles_nothing(store, written):
    """A writer that was given up may have finished late, and whoever takes in may be killed at any point."""
    for event in EVENTS[:written]:
        store.journal("run").append(event)
    for _ in range(2):
        unsent.save(store, Unsent("run", {"run": (0, EVENTS)}, SAMPLES))
        unsent.take_in(store, nobody)
    assert events(store) == EVENTS
    assert len(store.readings().read("run", "GPU-1").time_s) == 5


def test_what_was_learnt_since_is_not_overwritten(store):
    unsent.save(store, Unsent("run", learnt=[LEARNT], at_s=1.0))
    memory = Memory(Database())
    memory.keep("mark", "GPU-1", "H200", {"phases": {"later": 1}})
    unsent.take_in(store, nobody)
    assert memory.recall("mark", "GPU-1", "H200").payload == {"phases": {"later": 1}}
    memory.database.close()


def test_another_store_s_files_stay(store, tmp_path):
    path = unsent.save(store, Unsent("run", {"run": (0, EVENTS)}))
    other = SqliteStore(Database(tmp_path / "other.db"))
    assert unsent.take_in(other, nobody) == []
    assert path.exists()
    assert other.streams() == []
    other.close()


def test_a_stream_that_has_gone_on_otherwise_is_left_alone(store, caplog):
    store.journal("run").append(Began(0.0, "run", {"command": ["another"]}))
    path = unsent.save(store, Unsent("run", {"run": (0, EVENTS)}))
    with caplog.at_level(logging.WARNING, "joulewise"):
        assert unsent.take_in(store, nobody) == []
    assert len(events(store)) == 1
    assert [each.suffix for each in path.parent.iterdir()] == [".damaged"]
    assert "has gone on otherwise" in caplog.text


def test_readings_that_come_too_late_are_not_lost_with_their_file(store, caplog):
    """A run that was gone on with has written its own: nothing can be put between readings."""
    store.readings().write("run", "GPU-1", [Sample(1.7e9 + second, power_w=300.0) for second in (2, 3, 90, 91)])
    path = unsent.save(store, Unsent("run", {"run": (0, EVENTS)}, SAMPLES))
    before = path.read_bytes()
    with caplog.at_level(logging.WARNING, "joulewise"):
        assert unsent.take_in(store, nobody) == ["run"]
    (aside,) = path.parent.iterdir()
    assert (aside.suffix, aside.read_bytes()) == (".damaged", before)
    (line,) = caplog.messages
    assert line.endswith("holds later readings of run, so 3 are only in the file")
    assert events(store) == EVENTS


def test_a_run_of_which_a_file_is_left_is_known(store, home):
    assert not unsent.waits("run")
    path = unsent.save(store, Unsent("run", {"run": (0, EVENTS)}))
    assert unsent.waits("run")
    assert not unsent.waits("ru")
    path.rename(path.with_suffix(".damaged"))
    assert unsent.waits("run")
    path.with_suffix(".damaged").unlink()
    assert not unsent.waits("run")


def test_it_ends_between_two_files_once_it_is_enough(store):
    for number in range(3):
        unsent.save(store, Unsent(f"run{number}", {f"run{number}": (0, EVENTS)}))
    answers = iter([False, True])
    assert len(unsent.take_in(store, nobody, lambda: next(answers))) == 1
    assert len(unsent.take_in(store, nobody)) == 2


def test_what_a_killed_writer_left_is_counted_and_deleted_when_it_is_old(store, monkeypatch):
    monkeypatch.setattr(unsent, "MOST_FILES", 2)
    path = unsent.save(store, Unsent("run", {"run": (0, EVENTS)}))
    old, new = path.with_name("killed-1.part"), path.with_name("writing-2.part")
    for part in (old, new):
        part.write_text("{")
    with pytest.raises(NotKept, match="holds 2 runs already"):
        unsent.save(store, Unsent("run", {"run": (0, EVENTS)}))
    os.utime(old, (1.7e9, 1.7e9))
    unsent.take_in(store, nobody)
    assert [each.name for each in path.parent.iterdir()] == ["writing-2.part"]


def test_a_file_that_can_be_neither_read_nor_renamed_hides_no_other(store, caplog, monkeypatch):
    good = unsent.save(store, Unsent("run", {"run": (0, EVENTS)}))
    (good.parent / "bad.jsonl").write_bytes(b"\n")
    (good.parent / "bad.damaged").mkdir()
    with caplog.at_level(logging.WARNING, "joulewise"):
        assert unsent.take_in(store, nobody) == ["run"]
    assert "bad.jsonl cannot be taken in" in caplog.text


DAMAGED = {
    "empty line": b"\n",
    "half": b'{"unsent":1,"store":',
    "binary": bytes(range(256)),
    "no header": b"[]\n",
    "another format": b'{"unsent":2,"store":"x","run":"run","at":1}\n',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_set_aside_and_hides_no_other(store, caplog, damage):
    good = unsent.save(store, Unsent("run", {"run": (0, EVENTS)}))
    (good.parent / "bad.jsonl").write_bytes(DAMAGED[damage])
    with caplog.at_level(logging.WARNING, "joulewise"):
        assert unsent.take_in(store, nobody) == ["run"]
    assert [path.name for path in good.parent.iterdir()] == ["bad.damaged"]
    assert len(caplog.messages) == 1


def test_a_link_is_not_followed(store, tmp_path):
    good = unsent.save(store, Unsent("run", {"run": (0, EVENTS)}))
    target = good.rename(tmp_path / "elsewhere")
    good.symlink_to(target)
    assert unsent.take_in(store, nobody) == []
    assert target.exists()


def test_a_store_that_is_never_reached_again_does_not_fill_the_disk(store, monkeypatch):
    monkeypatch.setattr(unsent, "MOST_FILES", 2)
    for _ in range(2):
        unsent.save(store, Unsent("run", {"run": (0, EVENTS)}))
    with pytest.raises(NotKept, match="holds 2 runs already"):
        unsent.save(store, Unsent("run", {"run": (0, EVENTS)}))
