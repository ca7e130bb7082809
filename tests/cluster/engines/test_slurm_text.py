"""What Slurm prints, read without Slurm; the texts are what 22.05.8 said, shortened."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.cluster.engine import Order
from joulewise.cluster.engines import slurm_order, slurm_text
from joulewise.cluster.engines.slurm_commands import Refused, SlurmCommands
from joulewise.core.errors import BadSpec, EngineLost, MissingPart

JOB = {
    "job_id": 1,
    "name": "a",
    "partition": "train",
    "job_state": "RUNNING",
    "comment": "",
    "admin_comment": "",
    "nodes": "n[2-3]",
    "gres_detail": ["gpu:a100-sxm:4(IDX:0-3)", "gpu:a100-sxm:4(IDX:0-3)"],
    "tres_per_node": "gres:gpu:4",
    "node_count": 2,
    "required_nodes": "n2,n3",
    "priority": 4294901759,
    "restart_cnt": 1,
    "user_id": 1000,
    "submit_time": 1794820354,
    "eligible_time": 1794820557,
    "start_time": 1794820558,
    "end_time": 0,
    "exit_code": 0,
    "state_reason": "None",
    "state_description": "",
}
NODE = {
    "name": "n2",
    "state": "mixed",
    "state_flags": [],
    "gres": "gpu:a100-sxm:8",
    "partitions": ["train"],
    "reason": "",
}


def job(**said: object) -> slurm_text.SlurmJob:
    return slurm_text.jobs({"jobs": [{**JOB, **said}]})[0]


def node(**said: object) -> slurm_text.SlurmNode:
    return slurm_text.nodes({"nodes": [{**NODE, **said}]})[0]


def test_a_running_job_holds_its_gpus_and_has_started_once_more_than_it_was_restarted() -> None:
    seen = job()
    assert (seen.state, seen.place, seen.starts, seen.held) == ("running", {"n2": 4, "n3": 4}, 2, False)
    assert seen.asked == {"nodes": 2, "required": ("n2", "n3"), "gpus": 4}


def test_a_job_on_its_way_back_to_the_queue_still_holds_the_nodes_that_are_not_free_yet() -> None:
    seen = job(job_state="COMPLETING", nodes="n2", gres_detail=[], priority=0, state_reason="JobHeldUser")
    assert (seen.state, seen.place, seen.starts, seen.held, seen.held_by_user) == ("leaving", {"n2": 4}, 1, True, True)


@pytest.mark.parametrize(
    ("word", "status", "state", "code"),
    [
        ("COMPLETED", 0, "ended", 0),
        ("FAILED", 768, "failed", 3),
        ("TIMEOUT", 15, "failed", 143),
        ("CANCELLED", 0, "cancelled", 0),
    ],
)
def test_a_job_that_is_over_has_the_exit_code_of_a_shell(word: str, status: int, state: str, code: int) -> None:
    seen = job(job_state=word, exit_code=status)
    assert (seen.state, seen.exit_code, seen.place) == (state, code, {})


def test_what_later_versions_say_in_another_form_is_read_too() -> None:
    later = job(
        job_state=["RUNNING", "COMPLETING"],
        priority={"set": True, "infinite": False, "number": 0},
        end_time={"set": True, "infinite": False, "number": 5},
        exit_code={"return_code": {"set": True, "number": 3}, "signal": {"id": {"set": False, "number": 0}}},
        comment={"administrator": "watts", "job": "ours", "system": ""},
    )
    assert (later.state, later.held, later.end_s, later.exit_code) == ("leaving", True, 5.0, 3)
    assert (later.comment, later.admin_comment) == ("ours", "watts")


@pytest.mark.parametrize(
    ("state", "flags", "seen", "why"),
    [
        ("idle", [], "up", ""),
        ("idle", ["POWERING_DOWN"], "off", ""),
        ("idle", ["POWERED_DOWN", "POWER_UP"], "booting", ""),
        ("idle", ["NOT_RESPONDING", "POWERING_UP"], "booting", ""),
        ("mixed", ["DRAIN"], "down", "drain mixed"),
        ("idle", ["NOT_RESPONDING"], "down", "does not respond"),
        ("unknown", [], "down", "unknown"),
        (["IDLE", "POWERED_DOWN"], [], "off", ""),
    ],
)
def test_a_node_is_up_off_booting_or_down(state: object, flags: list[str], seen: str, why: str) -> None:
    found = node(state=state, state_flags=flags)
    assert (found.state, found.why, found.gpus, found.kind) == (seen, why, 8, "a100-sxm")


def test_json_of_another_shape_is_said_to_be_so() -> None:
    with pytest.raises(EngineLost, match="no list 'jobs'"):
        slurm_text.jobs({})
    with pytest.raises(EngineLost, match="not as known here"):
        slurm_text.jobs({"jobs": [{"job_id": 1}]})


def test_a_job_without_its_user_is_refused_and_not_taken_for_root_s() -> None:
    said = {"job_id": 1, "job_state": "PENDING", "user_id": 1000}
    assert slurm_text.jobs({"jobs": [said]})[0].uid == 1000
    del said["user_id"]
    with pytest.raises(EngineLost, match="not as known here"):
        slurm_text.jobs({"jobs": [said]})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,07],m", ["n1", "n2", "n3", "n07", "m"]),
        ("r[1-2]n[08-09]", ["r1n08", "r1n09", "r2n08", "r2n09"]),
        ("", []),
    ],
)
def test_lists_of_hosts_are_spelt_out(text: str, names: list[str]) -> None:
    assert slurm_text.hostnames(text) == names


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu:8", (8, "")),
        ("gpu:a100:4(S:0-1)", (4, "a100")),
        ("gres:gpu:2", (2, "")),
        ("lustre:1,gpu:2(IDX:0,3)", (2, "")),
        ("gpu", (1, "")),
        ("", (0, "")),
    ],
)
def test_gpus_are_counted_in_whatever_form(text: str, found: tuple[int, str]) -> None:
    assert slurm_text.gpus(text) == found


def test_what_accounting_says_of_a_job_that_is_over() -> None:
    line = "\x1f".join(["7", "a", "train", "CANCELLED by 0", "0:15", "10", "20", "30", "1000", "c", "admin"])
    (seen,) = slurm_text.past(f"{line}\n7.batch|nonsense\n", "\x1f")
    assert (seen.id, seen.state, seen.exit_code, seen.end_s, seen.uid, seen.comment) == (
        7,
        "cancelled",
        143,
        30.0,
        1000,
        "c",
    )


ORDERS = st.builds(
    Order,
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
    command=st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20), min_size=1).map(
        tuple
    ),
    gpus=st.sampled_from([1, 3, 8, 16]),
    submitted_s=st.floats(1, 1e10),
    checkpoint=st.none() | st.just("here"),
    work=st.none() | st.floats(1, 1e9),
    environ=st.dictionaries(st.from_regex(r"[A-Z_]{1,5}", fullmatch=True), st.text("a 'b\"$\n,|", max_size=9)),
    brought=st.none() | st.just({"points": [[1, 2.5]]}),
)


@given(ORDERS)
def test_an_order_comes_back_from_its_comment_and_its_folder(
    tmp_path_factory: pytest.TempPathFactory, order: Order
) -> None:
    home = tmp_path_factory.mktemp("o", numbered=True)
    object.__setattr__(order, "directory", str(home))
    slurm_order.check(order, [8, 8])
    folder, comment = slurm_order.written(order, 5.0)
    found = slurm_order.found(comment, os.getuid())
    assert found is not None
    assert (found.order, found.digest) == (order, slurm_order.digest(order))
    stranger = slurm_order.found(comment, os.getuid() + 1)  # not his file, so only what the comment says
    assert stranger is not None
    assert (stranger.order.command, stranger.order.gpus) == ((), order.gpus)
    assert (folder / "job.sh").read_text().startswith("#!/bin/sh\n")


def test_the_script_runs_the_command_as_it_was_given_and_hands_its_code_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("sh", "-c", 'printf "%s|" "$V" "$@" > out; kill -USR1 $$; exit 7', "sh", "a b", "$HOME", "'")
    order = Order("a", words, 1, environ={"V": "x '$y\n\""}, directory=str(tmp_path))
    stand_in = tmp_path / "srun"
    stand_in.write_text('#!/bin/sh\nwhile [ "$1" != sh ]; do shift; done\nexec "$@"\n')
    stand_in.chmod(0o755)
    folder = tmp_path / "a 'folder'"
    (tmp_path / "job.sh").write_text(slurm_order.script(order, folder))
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_NUM_NODES": "1"}
    environ |= {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}
    for _ in range(2):  # the folder may be gone, and that is no business of the command
        ran = subprocess.run(["sh", "job.sh"], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stderr) == (7, "")
        assert out.read_text() == "x '$y\n\"|a b|$HOME|'|"
        folder.mkdir(exist_ok=True)
    assert (folder / "task-0").read_text() == "7.0\n"


def test_a_job_listens_when_all_its_tasks_have_said_so_in_this_start(tmp_path: Path) -> None:
    folder, comment = slurm_order.written(Order("a", ("true",), 16, directory=str(tmp_path)), 5.0)
    found = slurm_order.found(comment, os.getuid())
    assert found is not None
    listens = lambda restarts: slurm_order.listen(found, 7, restarts, 2, os.getuid())  # noqa: E731
    assert not listens(0)
    (folder / "task-0").write_text("7.1\n")
    assert not listens(1)
    (folder / "task-1").write_text("7.0\n")
    assert not listens(1)
    (folder / "task-1").write_text("7.1\n")
    assert [listens(restarts) for restarts in (0, 1, 2)] == [False, True, False]
    # Where that cannot be known it is asked: in a folder of somebody else, and of a script that never says it.
    assert slurm_order.listen(found, 7, 0, 2, os.getuid() + 1)
    older = slurm_order.found(comment.replace('"tells":true,', ""), os.getuid())
    assert older is not None
    assert slurm_order.listen(older, 7, 0, 2, os.getuid())


@pytest.mark.parametrize(
    "comment",
    [
        "",
        "mine",
        "joulewise",
        "joulewise {",
        'joulewise {"v":2}',
        'joulewise {"v":1,"digest":"d","folder":"/x","order":{"name":"../x","gpus":1}}',
        'joulewise {"v":1,"digest":"d","folder":"/x","order":{"name":"a","gpus":"1"}}',
        'joulewise {"v":1,"digest":"d","folder":"/x","order":[]}',
        'joulewise {"v":1,"folder":"/x","order":{"name":"a","gpus":1}}',
        'joulewise {"v":1,"digest":["d"],"folder":"/x","order":{"name":"a","gpus":1}}',
        'joulewise {"v":1,"digest":"d","folder":"x","order":{"name":"a","gpus":1}}',
        'joulewise {"v":1,"digest":"d","folder":"/a\\u0000b","order":{"name":"a","gpus":1}}',
        f'joulewise {{"v":1,"digest":"d","folder":"/x","order":{{"name":"a","gpus":1,"work":{10**400}}}}}',
        "joulewise " + "[" * 1014,
        "joulewise " + '{"v":' * 200,
    ],
)
def test_a_comment_that_names_no_order_is_no_job_of_ours(comment: str) -> None:
    assert slurm_order.found(comment, 0) is None


@pytest.mark.parametrize(
    "field",
    [{"least_gpus": "x"}, {"weight": float("nan")}, {"weight": None}, {"work": -5.0}, {"batch": 0}, {"checkpoint": 5}],
    ids=str,
)
def test_a_comment_whose_order_makes_no_sense_is_no_job_of_ours(field: dict[str, object]) -> None:
    facts = {"name": "a", "gpus": 1, **field}
    comment = slurm_order.MARK + json.dumps({"v": 1, "digest": "d", "folder": "/x", "order": facts})
    assert slurm_order.found(comment, 0) is None


def test_a_folder_that_cannot_be_a_path_adds_nothing() -> None:
    comment = slurm_order.MARK + json.dumps(
        {"v": 1, "digest": "d", "folder": "/\ud800", "order": {"name": "a", "gpus": 1}}
    )
    found = slurm_order.found(comment, 0)
    assert found is not None
    assert found.order == Order("a", (), 1)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"command": 5}',
        '{"command": [5]}',
        '{"command": ["x"], "environ": [1]}',
        '{"command": ["x"], "brought": [1]}',
        '{"command": ["x"], "brought": ' + '{"a":' * 50 + "1" + "}" * 51,
        '{"command": ["\\ud800"]}',
        '{"command": ["x"], "directory": 5}',
    ],
    ids=lambda text: text[:40],
)
def test_an_orders_file_that_is_not_sound_adds_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "order.json").write_text(text)
    facts = {"v": 1, "digest": "d", "folder": str(tmp_path), "order": {"name": "a", "gpus": 1}}
    found = slurm_order.found(slurm_order.MARK + json.dumps(facts), os.getuid())
    assert found is not None
    assert found.order == Order("a", (), 1)


def test_a_pipe_in_place_of_the_orders_file_stops_nobody(tmp_path: Path) -> None:
    order = Order("a", ("true",), 1, directory=str(tmp_path))
    folder, comment = slurm_order.written(order, 5.0)
    (folder / "order.json").unlink()
    os.mkfifo(folder / "order.json")
    found = slurm_order.found(comment, os.getuid())
    assert found is not None
    assert found.order.command == ()


def test_an_order_too_long_for_a_comment_is_refused_before_anything_is_handed_in(tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match="Slurm's comment has 1024"):
        slurm_order.written(Order("a", ("true",), 1, checkpoint="x" * 1000, directory=str(tmp_path)), 5.0)


class StandIn:
    """Commands that say what a test wants, in a folder that stands first in the search path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands = SlurmCommands({"PATH": f"{folder}:/usr/bin:/bin"})

    def says(self, name: str, *, out: str = "", err: str = "", code: int = 0) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\ncat <<'EOF'\n{out}\nEOF\ncat >&2 <<'EOF'\n{err}\nEOF\nexit {code}\n")
        path.chmod(0o755)


@pytest.fixture
def stand_in(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path)


def test_slurm_that_is_not_installed_is_a_missing_part(tmp_path: Path) -> None:
    with pytest.raises(MissingPart, match="squeue is not installed here; install slurm-client"):
        SlurmCommands({"PATH": str(tmp_path)}).run("squeue")


@pytest.mark.parametrize(
    ("said", "version"), [("slurm-wlm 22.05.8", (22, 5)), ("slurm 23.11.4", (23, 11)), ("slurm 22.05.8-rc1", (22, 5))]
)
def test_versions_from_22_05_on_are_taken(stand_in: StandIn, said: str, version: tuple[int, int]) -> None:
    stand_in.says("sinfo", out=said)
    assert stand_in.commands.version() == version


def test_an_older_version_is_refused_with_the_way_out(stand_in: StandIn) -> None:
    stand_in.says("sinfo", out="slurm-wlm 20.11.7")
    with pytest.raises(BadSpec, match=r"20\.11\.7 is older than 22\.05.*update Slurm"):
        stand_in.commands.version()


def test_a_command_that_fails_in_its_json_alone_has_failed(stand_in: StandIn) -> None:
    stand_in.says("squeue", out=json.dumps({"errors": [{"description": "Failed while looking for jobs"}], "jobs": []}))
    stand_in.says("scontrol", out="Slurmctld(primary) at vm is DOWN\n*****", code=1)
    with pytest.raises(EngineLost, match="slurmctld does not answer"):
        stand_in.commands.answer("squeue")
    stand_in.says("squeue", out="no json")
    with pytest.raises(EngineLost, match="printed no JSON"):
        stand_in.commands.answer("squeue")


@pytest.mark.parametrize(
    ("err", "kind", "words"),
    [
        ('sbatch: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2"', EngineLost, "munge"),
        ("sbatch: fatal: Could not establish a configuration source", EngineLost, "SLURM_CONF"),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", EngineLost, "scontrol ping"),
        ("Access/permission denied for job 2", Refused, "rights of a Slurm operator"),
        ("Job has already finished for job 2", Refused, "already finished"),
        ("something new", EngineLost, "something new"),
        ("", EngineLost, "no reason"),
    ],
)
def test_each_way_of_being_away_has_its_own_line(
    stand_in: StandIn, err: str, kind: type[Exception], words: str
) -> None:
    stand_in.says("scontrol", out="Slurmctld(primary) at vm is UP")
    stand_in.says("sbatch", err=err, code=1)
    with pytest.raises(kind, match=words) as caught:
        stand_in.commands.run("sbatch")
    assert "\n" not in str(caught.value)


def test_a_scancel_that_fails_without_a_word_was_too_late(stand_in: StandIn) -> None:
    stand_in.says("scontrol", out="Slurmctld(primary) at vm is UP")
    stand_in.says("scancel", code=1)
    with pytest.raises(Refused, match="is over"):
        stand_in.commands.run("scancel", "7")
    stand_in.says("scontrol", out="Slurmctld(primary) at vm is DOWN", code=1)
    with pytest.raises(EngineLost, match="slurmctld does not answer"):
        stand_in.commands.run("scancel", "7")


@pytest.mark.parametrize(
    ("more", "reason"), [({}, ""), ({"state_description": "killed by the site"}, "killed by the site")]
)
def test_what_a_cancelled_job_last_waited_for_is_not_why_it_was_cancelled(more: dict[str, str], reason: str) -> None:
    assert job(job_state="PENDING", state_reason="Prolog").reason == "Prolog"
    assert job(job_state="CANCELLED", state_reason="Prolog", **more).reason == reason
