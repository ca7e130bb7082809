"""Which of Slurm's jobs are ours and what they are called, from what Slurm says, without Slurm."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from joulewise.cluster.engine import Order
from joulewise.cluster.engines import slurm_order, slurm_text
from joulewise.cluster.engines.slurm import SlurmEngine
from joulewise.cluster.engines.slurm_commands import SlurmCommands
from joulewise.cluster.engines.slurm_view import SlurmView
from joulewise.core.errors import BadSpec

ALICE, BOB = 54321, 54322


def said(order: Order, folder: str = "/nowhere") -> str:
    """The comment of an order that nobody has a file of."""
    facts = {"name": order.name, "gpus": order.gpus, "submitted_s": order.submitted_s}
    return slurm_order.MARK + json.dumps({"v": 1, "digest": "d", "folder": folder, "order": facts})


class Told(SlurmCommands):
    """A Slurm that has the jobs it is given, and writes down what it is told to do."""

    def __init__(self, accounting: bool = False) -> None:
        super().__init__({"PATH": "/nowhere", "TOKEN": "root's own"})
        self.jobs: list[dict[str, Any]] = []
        self.ended: list[Sequence[str]] = []
        """Rows of accounting."""
        self.acts: list[tuple[str, ...]] = []
        self.handed: list[tuple[tuple[str, ...], str, bytes]] = []
        """What ``sbatch`` was told, the script, and the environment."""
        self.accounting = accounting
        self.enforce = "none"

    def has(self, program: str) -> bool:
        return True

    def answer(self, *words: str) -> dict[str, Any]:
        return {"jobs": self.jobs, "nodes": [{"name": "n1", "state": "idle", "gres": "gpu:8"}]}

    def run(self, *words: str, directory: str | os.PathLike[str] | None = None) -> str:
        if words[:3] == ("scontrol", "show", "config"):
            stored = f"AccountingStorageType = accounting_storage/{'slurmdbd' if self.accounting else 'none'}\n"
            return f"AccountingStorageEnforce = {self.enforce}\n{stored}"
        if words[0] == "sacct":
            between = next(word for word in words if word.startswith("--delimiter=")).partition("=")[2]
            return "".join(between.join(row) + "\n" for row in self.ended)
        if words[0] == "sbatch":
            kept = next((word for word in words if word.startswith("--export-file=")), None)
            environ = b"" if kept is None else Path(kept.partition("=")[2]).read_bytes()
            self.handed.append((words, Path(words[-1]).read_text(), environ))
            return "99\n"
        self.acts.append(words)
        return ""

    def has_job(self, number: int, comment: str, state: str = "RUNNING", **more: Any) -> None:
        """It has this one too, or otherwise than before."""
        self.jobs = [job for job in self.jobs if job["job_id"] != number]
        made = {"job_id": number, "name": "x", "partition": "p", "job_state": state, "comment": comment}
        held = {"nodes": "n1", "tres_per_node": "gres:gpu:1", "gres_detail": ["gpu:1(IDX:0)"]}
        self.jobs.append(made | held | {"user_id": ALICE, "priority": 1, "start_time": 5, "submit_time": 5} | more)


NIGHT = Order("night", ("sleep", "9"), 1, submitted_s=5.0)


def test_a_user_who_writes_another_comment_on_a_job_keeps_one_job_under_its_name() -> None:
    slurm = Told()
    view = SlurmView(slurm, None)
    slurm.has_job(7, said(NIGHT))
    assert list(view.look().mine) == ["night"]
    for comment in ("baseline for the paper", "", said(replace(NIGHT, name="other", gpus=8))):
        slurm.has_job(7, comment)
        seen = view.look()
        assert (list(seen.mine), seen.forgotten, seen.foreign) == (["night"], (), {})
        assert seen.mine["night"].order.gpus == 1


def test_a_requeue_puts_the_time_of_submission_on_and_it_is_the_same_job() -> None:
    slurm = Told()
    view = SlurmView(slurm, None)
    slurm.has_job(7, said(NIGHT))
    view.look()
    slurm.has_job(7, "mine", submit_time=60, restart_cnt=1)
    seen = view.look()
    assert (list(seen.mine), seen.forgotten) == (["night"], ())


@pytest.mark.parametrize("change", [{"user_id": BOB}, {"submit_time": 60}], ids=["another user", "later"])
def test_a_number_that_was_given_away_again_is_another_job_and_the_first_is_forgotten(change: dict[str, int]) -> None:
    slurm = Told()
    view = SlurmView(slurm, None)
    slurm.has_job(7, said(NIGHT))
    view.look()
    slurm.has_job(7, said(replace(NIGHT, name="other")), **change)
    seen = view.look()
    assert list(seen.mine) == ["other"]
    assert [each.name for each in seen.forgotten] == ["night"]


def test_a_job_whose_comment_was_changed_and_that_has_ended_is_not_taken_for_forgotten() -> None:
    slurm = Told(accounting=True)
    view = SlurmView(slurm, None)
    slurm.has_job(7, said(NIGHT))
    view.look()
    slurm.jobs = []
    now = str(int(time.time()))
    slurm.ended = [["7", "night", "p", "COMPLETED", "0:0", "60", "61", now, str(ALICE), "for the paper", ""]]
    seen = view.look()
    assert seen.forgotten == ()
    assert seen.mine["night"].slurm.state == "ended"
    assert view.look().mine["night"].slurm.state == "ended"


def test_two_users_jobs_of_one_name_both_live_and_the_later_has_a_name_of_its_own_for_good() -> None:
    slurm = Told()
    view = SlurmView(slurm, None)
    slurm.has_job(7, said(NIGHT))
    slurm.has_job(8, said(NIGHT), user_id=BOB)
    seen = view.look()
    assert {name: each.slurm.id for name, each in seen.mine.items()} == {"night": 7, "night@8": 8}
    assert (seen.doubles, seen.mine["night@8"].seen().order.name) == ((), "night@8")
    slurm.has_job(7, said(NIGHT), "COMPLETED")
    assert {name: each.slurm.id for name, each in view.look().mine.items()} == {"night": 7, "night@8": 8}
    slurm.jobs = slurm.jobs[:1]
    slurm.has_job(9, said(NIGHT))
    assert {name: each.slurm.id for name, each in view.look().mine.items()} == {"night@8": 8, "night": 9}


def test_the_next_scheduler_finds_such_a_name_in_slurm(tmp_path: Path) -> None:
    slurm = Told()
    slurm.has_job(7, said(NIGHT))
    slurm.has_job(8, said(NIGHT), user_id=BOB)
    engine = SlurmEngine(commands=slurm, fence=tmp_path)
    engine.take(1)
    engine.wait(0.0)
    assert ("scontrol", "update", "JobId=8", "JobName=night@8") in slurm.acts
    assert not any(act[0] == "scancel" for act in slurm.acts)
    slurm.jobs = []
    slurm.has_job(8, said(NIGHT), user_id=BOB, name="night@8")
    assert list(SlurmView(slurm, None).look().mine) == ["night@8"]


def test_a_second_job_of_one_user_and_name_is_one_too_many_and_never_stands_for_the_first() -> None:
    slurm = Told()
    view = SlurmView(slurm, None)
    slurm.has_job(7, said(NIGHT))
    slurm.has_job(8, said(NIGHT))
    assert [(each.slurm.id, first) for each, first in view.look().doubles] == [(8, 7)]
    slurm.has_job(7, said(NIGHT), "COMPLETED")
    slurm.has_job(8, said(NIGHT), "CANCELLED")
    assert view.look().mine["night"].slurm.id == 7


def test_a_name_that_another_user_has_is_refused_with_whose_it_is(tmp_path: Path) -> None:
    slurm = Told()
    slurm.has_job(7, said(NIGHT))
    engine = SlurmEngine(commands=slurm, fence=tmp_path)
    with pytest.raises(BadSpec, match=rf"a job of user {ALICE} called night is running already \(Slurm's 7\)"):
        engine.submit(replace(NIGHT, directory=str(tmp_path)))
    assert slurm.handed == []


def test_another_users_digest_does_not_swallow_an_order(tmp_path: Path) -> None:
    order = replace(NIGHT, directory=str(tmp_path))
    slurm = Told()
    slurm.has_job(7, said(NIGHT).replace('"digest": "d"', f'"digest": "{slurm_order.digest(order)}"'), "COMPLETED")
    assert SlurmEngine(commands=slurm, fence=tmp_path).submit(order) == "99"


def test_a_job_is_asked_to_save_only_when_its_command_has_begun_in_this_start(tmp_path: Path) -> None:
    slurm = Told()
    order = replace(NIGHT, directory=str(tmp_path), checkpoint="checkpoint")
    folder, comment = slurm_order.written(order, 5.0, {})
    now = {"user_id": os.getuid(), "restart_cnt": 1}
    slurm.has_job(7, comment, **now)
    engine = SlurmEngine(commands=slurm, fence=tmp_path, poll_s=0.0)
    engine.take(1)
    (folder / "task-0").write_text("7.0\n")  # of the start before
    engine.preempt("night")
    engine.wait(0.0)
    assert slurm.acts == []
    assert engine.jobs()[0].state == "leaving"
    (folder / "task-0").write_text("7.1\n")
    engine.wait(0.0)
    assert slurm.acts == [("scancel", "--signal=USR1", "7")]


def test_a_forgotten_job_is_handed_in_with_its_own_environment_and_nobody_elses(tmp_path: Path) -> None:
    slurm = Told()
    order = replace(NIGHT, directory=str(tmp_path))
    folder, comment = slurm_order.written(order, 5.0, {"HOME": "/h", "LINES": "a\nb=c", "SLURM_JWT": "key"})
    assert (folder / "environ").stat().st_mode & 0o777 == 0o600
    slurm.has_job(7, comment, user_id=os.getuid())
    engine = SlurmEngine(commands=slurm, fence=tmp_path)
    engine.take(1)
    slurm.has_job(7, "a comment of its user's", user_id=os.getuid())
    engine.wait(0.0)
    slurm.jobs = []
    (folder / "job.sh").unlink()
    (folder / "job.sh").symlink_to("/etc/shadow")  # is not followed: the script is made anew
    engine.wait(0.0)
    ((words, script, environ),) = slurm.handed
    assert environ == b"HOME=/h\0LINES=a\nb=c\0"
    assert f"--comment={comment}" in words
    assert script == slurm_order.script(order, folder)
    slurm.has_job(8, comment, user_id=os.getuid())
    engine.wait(0.0)
    assert len(slurm.handed) == 1


def test_a_forgotten_job_is_handed_in_as_its_user_and_its_users_group_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = replace(NIGHT, directory=str(tmp_path))
    _, comment = slurm_order.written(order, 5.0, {"HOME": "/h"})
    uid = os.getuid()
    for group, handed in (({"group_id": 77}, [(f"--uid={uid}", "--gid=77")]), ({}, [])):
        slurm = Told()
        slurm.has_job(7, comment, user_id=uid, **group)
        engine = SlurmEngine(commands=slurm, fence=tmp_path)
        monkeypatch.setattr("os.geteuid", lambda: uid + 1)  # it is somebody else's scheduler
        engine.take(len(slurm.handed) + 1)
        slurm.jobs = []
        engine.wait(0.0)
        assert [words[1:3] for words, _, _ in slurm.handed] == handed
        monkeypatch.undo()


def test_without_a_sound_environment_of_its_own_it_gets_that_of_a_login(tmp_path: Path) -> None:
    slurm = Told()
    order = replace(NIGHT, directory=str(tmp_path))
    folder, comment = slurm_order.written(order, 5.0, {"HOME": "/h"})
    (folder / "environ").unlink()
    (folder / "environ").symlink_to("/etc/shadow")
    slurm.has_job(7, comment, user_id=os.getuid())
    engine = SlurmEngine(commands=slurm, fence=tmp_path)
    engine.take(1)
    slurm.jobs = []
    engine.wait(0.0)
    assert "--export=NONE" in slurm.handed[0][0]


def test_an_order_that_cannot_be_read_any_more_is_not_handed_in_as_nothing(tmp_path: Path) -> None:
    slurm = Told()
    slurm.has_job(7, said(NIGHT))
    engine = SlurmEngine(commands=slurm, fence=tmp_path)
    engine.take(1)
    slurm.jobs = []
    engine.wait(0.0)
    assert slurm.handed == []


def test_jobs_that_slurm_has_no_more_take_no_room() -> None:
    slurm = Told(accounting=True)
    view = SlurmView(slurm, None)
    long_ago = str(int(time.time() - 8 * 86400))
    for number in range(50):
        comment = said(replace(NIGHT, name=f"night-{number}"))
        slurm.ended = [[str(number), "x", "p", "COMPLETED", "0:0", "5", "5", long_ago, str(ALICE), comment, ""]]
        slurm.jobs = []
        slurm.has_job(number, comment, "COMPLETED")
        view.remember()
        view.look()
    slurm.jobs = []
    view.look()
    assert (view._known, view._past) == ({}, {})


def test_rows_that_a_user_writes_into_a_comment_are_no_rows() -> None:
    slurm = Told(accounting=True)
    view = SlurmView(slurm, None)
    now = str(int(time.time()))
    forged = ["1", "x", "p", "COMPLETED", "0:0", "5", "5", now, "0", said(NIGHT), ""]
    for between in ("\x1f", "|"):
        comment = f"hello\n{between.join(forged)}\n"
        slurm.ended = [["7", "x", "p", "COMPLETED", "0:0", "5", "5", now, str(ALICE), comment, ""]]
        view.remember()
        assert dict(view.look().mine) == {}


@pytest.mark.parametrize(
    "change",
    [{3: ""}, {3: " "}, {4: "x:0"}, {4: "0:x"}, {8: "zz"}, {8: ""}, {0: "7.batch"}, {0: ""}, {0: "²"}],
    ids=str,
)
def test_a_row_of_accounting_that_is_none_is_left_out_and_the_others_stay(change: dict[int, str]) -> None:
    row = ["7", "x", "p", "COMPLETED", "0:0", "5", "5", "5", "1000", "", ""]
    bad = [change.get(at, column) for at, column in enumerate(row)]
    (seen,) = slurm_text.past("|".join(bad) + "\n" + "|".join(row) + "\n", "|")
    assert seen.id == 7


def test_user_account_and_time_are_slurms_whatever_the_comment_says(scenario):
    shown = scenario("R28", "a Slurm comment that forges user, account, QOS and time", criterion="Slurm's own records")
    slurm = Told()
    facts = {"name": "x", "gpus": 1, "submitted_s": 1.0, "user": "root", "account": "vip", "qos": "urgent", "mark": "m"}
    comment = slurm_order.MARK + json.dumps({"v": 1, "digest": "d", "folder": "/nowhere", "order": facts})
    slurm.has_job(7, comment, account="physics", qos="normal", submit_time=1_700_000_000, user_id=ALICE)
    order = SlurmView(slurm, None).look().mine["x"].order
    assert (order.user, order.account, order.qos) == (str(ALICE), "physics", "normal")
    assert order.submitted_s == 1_700_000_000
    assert order.mark == f"{ALICE}:d"
    shown.saw("user, account, QOS, time as squeue says")


def test_a_job_is_the_same_submission_after_slurm_gave_it_another_number_and_time():
    slurm = Told()
    slurm.has_job(7, said(Order("x", (), 1, submitted_s=9.0)), submit_time=100)
    slurm.has_job(8, said(Order("x", (), 1, submitted_s=9.0)), "COMPLETED", submit_time=5, user_id=BOB)
    first = SlurmView(slurm, None).look().mine["x"].order
    slurm.jobs.clear()
    slurm.has_job(9, said(Order("x", (), 1, submitted_s=9.0)), submit_time=200)
    again = SlurmView(slurm, None).look().mine["x"].order
    assert first.mark == again.mark
    assert first.submitted_s != again.submitted_s


@pytest.mark.parametrize(
    ("enforce", "enforced"),
    [
        ("none", set()),
        ("associations", {"account"}),
        ("associations,limits,qos", {"account", "qos"}),
        ("ALL", {"account", "qos"}),
    ],
)
def test_who_may_use_an_account_or_a_qos_is_known_only_where_slurm_enforces_it(
    enforce: str, enforced: set[str]
) -> None:
    slurm = Told()
    slurm.enforce = enforce
    assert SlurmView(slurm, None).enforced() == enforced


def test_a_forgotten_job_keeps_its_account_and_qos_and_a_full_disk_is_that_jobs_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, comment = slurm_order.written(replace(NIGHT, directory=str(tmp_path)), 5.0, {})
    slurm = Told()
    slurm.has_job(7, comment, user_id=os.getuid(), account="vision", qos="urgent")
    engine = SlurmEngine(commands=slurm, fence=tmp_path)
    engine.take(1)
    engine.wait(0.0)
    slurm.jobs = []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    engine.wait(0.0)
    assert slurm.handed == []
    monkeypatch.undo()
    engine.wait(0.0)
    ((words, _, _),) = slurm.handed
    assert {"--account=vision", "--qos=urgent"} <= set(words)


def test_who_cancelled_a_job_is_not_told_of_the_next_one_of_its_name(tmp_path: Path, scenario) -> None:
    shown = scenario("R27", "a name that root has cancelled, used again; its user runs scancel", criterion="not 'root'")
    slurm = Told()
    slurm.has_job(7, said(NIGHT))
    engine = SlurmEngine(commands=slurm, fence=tmp_path)
    engine.take(1)
    engine.stop("night", "cancelled by root (uid 0)")
    slurm.has_job(7, said(NIGHT), "CANCELLED")
    assert [job.why for job in engine.jobs()] == ["cancelled by root (uid 0)"]
    slurm.has_job(8, said(NIGHT), "PENDING", user_id=BOB, nodes="")
    assert [(job.id, job.why) for job in engine.jobs()] == [("8", "")]
    slurm.has_job(8, said(NIGHT), "CANCELLED", user_id=BOB, nodes="")
    assert [(job.id, job.why) for job in engine.jobs()] == [("8", "")]
    (told,) = [each for each in engine.wait(0.0) if each.what == "cancelled"]
    assert told.says == ""
    shown.saw("nobody is named")


def test_who_cancelled_a_job_is_known_to_the_next_scheduler_and_only_of_a_job_that_was_cancelled(
    tmp_path: Path,
) -> None:
    slurm = Told()
    slurm.has_job(7, said(NIGHT), "CANCELLED", admin_comment="joulewise: cancelled by its user", state_reason="None")
    slurm.has_job(8, said(replace(NIGHT, name="other")), "CANCELLED", admin_comment="joulewise energy_j=5.0")
    ended = "site joulewise energy_j=5.0; cancelled by root (uid 0)"  # it was faster
    slurm.has_job(9, said(replace(NIGHT, name="done")), "COMPLETED", admin_comment=ended)
    engine = SlurmEngine(commands=slurm, fence=tmp_path)
    engine.take(1)
    assert {job.name: job.why for job in engine.jobs()} == {"night": "cancelled by its user", "other": "", "done": ""}
