import json
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="the server's packages are not installed (pip install 'joulewise[server]')")

from joulewise.cluster.engine import Order
from joulewise.serve import listen
from joulewise.serve.cluster import make_cluster_app
from joulewise.serve.tokens import Guard
from tests.cli.clusters import called, one_line
from tests.serve.cluster_toys import NOBODY, ToyDesk, ToySteering

STEERING = ToySteering()
NIGHT = ("submit", "--engine", "sim", "--name", "night-7", "--gpus", "8")
UNNAMED = ("submit", "--gpus", "8")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    app = make_cluster_app(STEERING, ToyDesk(), Guard(local_users=True), now=lambda: 1.8e9)
    with listen.bound("127.0.0.1", 0) as listening, listen.serving(app, listening):
        yield listen.url_of(listening)


@pytest.fixture(autouse=True)
def heard(monkeypatch, url) -> list[tuple[object, ...]]:
    monkeypatch.setenv("JOULEWISE_CLUSTER", url)
    STEERING.said.clear()
    STEERING.now = NOBODY
    return STEERING.said


def test_an_elastic_job_is_handed_in_with_all_that_is_known(heard, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    more = ("--checkpoint", "ckpt", "--least", "2", "--most", "16", "--steps", "10000", "--weight", "2")
    assert called(*NIGHT, *more, "--workload", "bert", "--batch", "256", "--", "python", "train.py", "--lr", "1") == 0
    shown = capsys.readouterr()
    assert shown.out == "1\n"
    assert "'joulewise cluster explain night-7' says how it fares" in shown.err
    ((_, order),) = heard
    assert order == Order(
        "night-7",
        ("python", "train.py", "--lr", "1"),
        8,
        submitted_s=1.8e9,
        checkpoint=str(tmp_path / "ckpt"),
        least_gpus=2,
        most_gpus=16,
        work=10_000.0,
        workload="bert",
        batch=256,
        weight=2.0,
        directory=str(tmp_path),
    )


def test_a_deadline_is_counted_from_now(heard):
    assert called(*NIGHT, "--deadline", "6h", "--limit", "2d", "--", "true") == 0
    ((_, order),) = heard
    assert order.deadline_s > 6 * 3600
    assert order.limit_s == 2 * 86_400
    assert not order.elastic


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--engine", "sim", "--name", "my job"), "job name 'my job' is not of letters, digits"),
        (("--engine", "sim", "--name", "a" * 65), "64 at most"),
        (("--workload", "w" * 201), "at most 200 characters"),
        (("--least", "2"), "name its --checkpoint folder"),
        (("--checkpoint", "c", "--least", "9"), "is more than --gpus 8"),
        (("--checkpoint", "c", "--most", "4"), "is fewer than --gpus 8"),
        (("--steps", "0"), "makes no sense"),
        (("--weight", "-1"), "makes no sense"),
        (("--deadline", "soon"), "is no time"),
        (("--partition", "train"), "is Slurm's"),
        (("--name", "night-7", "--engine", "ray"), "there are slurm and sim"),
        (("--frontier", "nowhere.json"), "nowhere.json"),
        (("--frontier", "run:nobody"), "nobody"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_sent(more, says, heard, capsys):
    handed_in = UNNAMED if "--name" in more else NIGHT
    assert called(*handed_in, *more, "--", "true") == 2
    assert says in one_line(capsys)
    assert heard == []


def test_a_name_that_is_taken_is_refused(capsys):
    assert called(*NIGHT, "--", "true") == 0
    capsys.readouterr()
    assert called(*NIGHT, "--", "false") == 2
    assert "is there already" in one_line(capsys)


def test_without_slurm_a_job_for_slurm_is_refused_with_the_way_out(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert called("submit", "--engine", "slurm", "--name", "x", "--gpus", "1", "--", "true") == 1
    assert "install slurm-client" in one_line(capsys)


def test_a_job_is_cancelled_by_its_name(capsys):
    called(*NIGHT, "--", "true")
    capsys.readouterr()
    assert called("cancel", "night-7") == 0
    assert STEERING.now.jobs == ()
    assert "night-7 has been told to end" in one_line(capsys)
    assert called("cancel", "nobody") == 2
    assert "no job here is called 'nobody'" in one_line(capsys)


def test_explain_asks_a_live_scheduler(capsys):
    called(*NIGHT, "--", "true")
    capsys.readouterr()
    assert called("explain", "night-7") == 0
    assert capsys.readouterr().out.startswith("night-7 runs on 8 GPUs.\nas decided last by the scheduler at http://")
    assert called("explain", "night-7", "--at", "2h") == 2
    assert "--at is a moment of a simulation" in one_line(capsys)
    assert called("explain", "nobody") == 2
    assert "no job here is called 'nobody'" in one_line(capsys)


def test_what_was_handed_in_and_cancelled_is_one_json_object_for_a_script(capsys):
    assert called(*NIGHT, "--json", "--", "true") == 0
    assert json.loads(capsys.readouterr().out) == {"job": "night-7", "id": "1", "engine": "sim"}
    assert called("cancel", "night-7", "--json") == 0
    shown = capsys.readouterr()
    assert (json.loads(shown.out), shown.err) == ({"cancelled": "night-7"}, "")
