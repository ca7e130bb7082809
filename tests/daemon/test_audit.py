import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.daemon.audit import KEPT, Audit


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def audit(tmp_path):
    log = Audit(tmp_path / "log" / "audit.jsonl")
    yield log
    log.close()


def test_an_act_is_one_line_with_its_time(audit):
    assert audit.write(uid=1000, gpu="GPU-aa", before=700.0, after=500.0, why="less", result="ok")
    assert audit.write(uid=0, before=None)
    first, second = lines(audit.path)
    assert first.pop("time").endswith("Z")
    assert first == {"uid": 1000, "gpu": "GPU-aa", "before": 700.0, "after": 500.0, "why": "less", "result": "ok"}
    assert second["before"] is None
    assert audit.path.stat().st_mode & 0o777 == 0o640


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.one_of(st.text(), st.floats(), st.none())))
def test_whatever_a_user_says_stays_inside_one_line(tmp_path_factory, fields):
    log = Audit(tmp_path_factory.mktemp("audit") / "audit.jsonl")
    fields.pop("time", None)
    assert log.write(**fields)
    assert log.write(op="next")
    log.close()
    text = log.path.read_bytes()
    assert text.count(b"\n") == 2
    assert json.loads(text.splitlines()[1])["op"] == "next"
    assert set(json.loads(text.splitlines()[0])) == {"time", *fields}


def test_a_long_text_is_cut(audit):
    audit.write(reason="x" * 60_000)
    assert 350 < len(str(lines(audit.path)[0]["reason"])) <= 400


@pytest.mark.parametrize("text", ["\U00020000" * 256, '"' * 256, "ß" * 256, "x" * 256])
def test_a_text_takes_no_more_room_however_its_letters_are_written(audit, text):
    audit.write(reason=text)
    reason = str(lines(audit.path)[0]["reason"])
    assert len(json.dumps(reason)) <= 400
    assert text.startswith(reason.removesuffix("…"))
    assert reason == text or len(json.dumps(reason)) > 350


def test_files_are_begun_anew_by_size_and_the_oldest_are_dropped(tmp_path):
    log = Audit(tmp_path / "audit.jsonl", most_bytes=500)
    for number in range(100):
        assert log.write(number=number)
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "audit.jsonl",
        *(f"audit.jsonl.{number}" for number in range(1, KEPT + 1)),
    ]
    kept = [tmp_path / f"audit.jsonl.{number}" for number in range(KEPT, 0, -1)]
    numbers = [line["number"] for path in [*kept, log.path] for line in lines(path)]
    assert numbers == list(range(100 - len(numbers), 100))
    assert all(path.stat().st_size <= 500 for path in tmp_path.iterdir())


def test_a_file_that_was_moved_away_is_begun_anew(audit):
    audit.write(number=1)
    audit.path.rename(audit.path.with_name("old"))
    audit.write(number=2)
    assert [line["number"] for line in lines(audit.path)] == [2]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_told_and_the_loss_is_counted_once_it_has_room(audit, monkeypatch):
    write, full = os.write, os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(os, "write", lambda file, data: write(full, data))
    assert not audit.write(number=1)
    assert not audit.write(number=2)
    assert not audit.ok
    assert "No space left" in audit.problem
    monkeypatch.undo()
    os.close(full)
    assert audit.ok
    assert audit.write(number=3)
    resumed, third = lines(audit.path)
    assert resumed["why"] == "2 lines could not be written"
    assert third["number"] == 3


def test_half_a_line_is_taken_back(audit, monkeypatch):
    write = os.write
    audit.write(number=1)
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:10]))
    assert not audit.write(number=2)
    monkeypatch.undo()
    assert audit.write(number=3)
    assert [line.get("number") for line in lines(audit.path)] == [1, None, 3]


def test_a_log_that_somebody_else_could_have_planted_is_not_written(tmp_path):
    (tmp_path / "target").write_text("")
    (tmp_path / "audit.jsonl").symlink_to("target")
    log = Audit(tmp_path / "audit.jsonl")
    assert not log.ok
    assert not log.write(op="take")
    assert (tmp_path / "target").read_text() == ""
    (tmp_path / "audit.jsonl").unlink()
    (tmp_path / "audit.jsonl").touch(mode=0o600)
    (tmp_path / "audit.jsonl").chmod(0o622)
    assert not log.ok
    assert "lets others write" in log.problem
    (tmp_path / "audit.jsonl").chmod(0o600)
    assert log.ok
    log.close()


def test_an_unwritable_place_is_no_crash(tmp_path):
    (tmp_path / "file").write_text("")
    log = Audit(tmp_path / "file" / "audit.jsonl")
    assert not log.ok
    assert not log.write(op="take")
    log.close()


def test_refusals_in_a_loop_do_not_push_out_what_was_done(tmp_path):
    now = [0.0]
    log = Audit(tmp_path / "audit.jsonl", clock=lambda: now[0])
    for _ in range(10_000):
        assert log.refuse(uid=666, op="take", result="NotPermitted: no")
    assert log.refuse(uid=1000, op="take", result="NotPermitted: no")
    for number in range(300):
        assert log.write(uid=666, op="apply", result="ok", number=number)
        assert log.write(uid=666, op="restore", result="failed: the GPU is gone", number=number)
    now[0] = 60.0
    assert log.refuse(uid=666, op="take", result="NotPermitted: no")
    log.close()
    written = lines(log.path)
    assert sum(line["uid"] == 666 and line["op"] == "take" for line in written) == 101
    assert sum(line["uid"] == 1000 for line in written) == 1
    assert [line["number"] for line in written if line["op"] == "restore"] == list(range(300))
    assert written[-1]["left_out"] == 9_900
