"""``joulewise cluster explain``: why a job runs as it does, from a simulation or from a file of decisions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from joulewise.cli.cluster_decisions import DecisionsFile
from joulewise.cli.cluster_policies import named
from joulewise.cluster.round import Decision
from joulewise.cluster.state import Allocation, Budget, Job, Kind, Snapshot, Way
from tests.cli.clusters import ONE_NODE, SMALL, called, crowded, one_line, written


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("trace") / "trace.csv", 10)


@pytest.fixture
def decisions(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "rounds.jsonl"
    assert called("simulate", trace, *SMALL, "--policy", "priced", "--policy", "fifo", "--decisions", path) == 0
    capsys.readouterr()
    return path


def test_a_simulation_says_why_a_job_runs_as_it_does(
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert called("explain", "job-0", "--at", "10m", "--trace", trace, *SMALL) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.startswith("job-0 runs on ")
    assert "price" in shown.out
    assert "so far: started after " in shown.out
    assert all(len(line) <= 80 for line in shown.out.splitlines())


def test_a_policy_without_prices_says_so(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("explain", "job-0", "--at", "10m", "--trace", trace, *SMALL, "--policy", "fifo", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["job"], said["policy"]) == ("job-0", "fifo")
    assert "no prices" in said["says"]


def test_a_file_of_decisions_says_what_the_simulation_does(
    decisions: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.loads(line) for line in decisions.read_text().splitlines()]
    start = next(line for line in lines if any(move["job"] == "job-3" for move in line.get("moves", ())))
    at = ("--at", f"{start['time_s'] - start['begun_s']:.0f}s")
    told = []
    for source in (("--decisions", decisions), ("--trace", trace, *SMALL)):
        assert called("explain", "job-3", *at, *source, "--json") == 0
        told.append(json.loads(capsys.readouterr().out))
    assert told[0]["says"] == told[1]["says"] == start["why"]["job-3"]
    assert told[0]["time_s"] == told[1]["time_s"]


def test_every_round_and_every_span_of_every_policy_is_written(decisions: Path) -> None:
    lines = [json.loads(line) for line in decisions.read_text().splitlines()]
    for policy in ("priced", "fifo"):
        rounds = [line for line in lines if line["policy"] == policy and "time_s" in line]
        spans = [line for line in lines if line["policy"] == policy and "from_s" in line]
        assert [line["time_s"] for line in rounds] == sorted(line["time_s"] for line in rounds)
        assert {span["job"] for span in spans} == {f"job-{number}" for number in range(10)}
        for line in rounds:
            assert sum(way["gpus"] for way in line["ways"].values()) <= 16
            assert not set(line["ways"]) & set(line["waits"])
        started = [move["job"] for line in rounds for move in line["moves"] if move["what"] == "start"]
        assert set(started) == {span["job"] for span in spans}
    assert all(line["prices"]["gpu_s"] for line in lines if line["policy"] == "priced" and line.get("ways"))


@pytest.fixture(scope="module")
def after_a_pause(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """When the second and third job come, all nodes but one sleep."""
    path = tmp_path_factory.mktemp("trace") / "pause.csv"
    rows = ("first,0,8,900,bert", "one,40000,8,9000,bert", "two,40010,8,7200,gpt2", "three,40020,8,7200,gpt2")
    path.write_text("\n".join(("name,submitted_s,gpus,duration_s,model", *rows)) + "\n")
    return path


@pytest.mark.parametrize("policy", ["priced", "tiresias"])
def test_one_that_waits_for_a_node_to_boot_is_not_said_to_run(
    policy: str, after_a_pause: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rounds.jsonl"
    flags = (after_a_pause, "--gpu", "sim:a100-sxm*32", "--policy", policy)
    assert called("simulate", *flags, "--decisions", path) == 0
    capsys.readouterr()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    spans = [line for line in lines if "from_s" in line]
    waited = 0
    for line in (line for line in lines if "time_s" in line):
        # Who is said to run runs, and nobody else.
        now_s = line["time_s"]
        assert set(line["ways"]) == {span["job"] for span in spans if span["from_s"] <= now_s < span["to_s"]}
        for job in set(line["held_back"]) & set(line["waits"]):
            waited += 1
            at = ("--at", f"{now_s - line['begun_s']:.0f}s", "--policy", policy, "--json")
            for source in (("--decisions", path), ("--trace", *flags[:3])):
                assert called("explain", job, *at, *source) == 0
                said = json.loads(capsys.readouterr().out)["says"]
                assert said.startswith(f"{job} waits for a node to boot. Then it runs on ")
    assert waited


def test_one_that_was_to_grow_and_is_not_held_back_any_more_is_told_anew(tmp_path: Path) -> None:
    few, many = Way(2, 1.0, 500.0, kind="a"), Way(4, 0.6, 600.0, kind="a")
    job = Job("grows", 0.0, ways=(few, many), work_left=1000.0, gpus_asked=2, way=few)
    kind = Kind("a", 2, 4, 50.0, 300.0)
    path = tmp_path / "rounds.jsonl"
    with DecisionsFile(path, 0.0) as book:
        for now_s, way in ((60.0, many), (120.0, many), (180.0, few)):
            seen = Snapshot(now_s, (kind,), (job,))
            book.round(named("fifo"), seen, Decision(Allocation({"grows": way}), Budget(), ()))
    held, still, not_now = (json.loads(line) for line in path.read_text().splitlines())
    assert held["why"]["grows"].startswith("grows runs on 2 GPUs, as before, until another node is up or others make ")
    assert (held["ways"]["grows"]["gpus"], held["held_back"]["grows"]["gpus"]) == (2, 4)
    assert still["why"] == {}
    assert not_now["why"]["grows"].startswith("grows runs on 2 GPUs: ")


def test_fairness_counts_in_the_prices_that_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    asked = ("long", "--at", "2h", "--trace", crowded(tmp_path / "long.csv"), *ONE_NODE)
    for power in (0, 3):
        assert called("explain", *asked, "--fairness", power, "--json") == 0
        told.append(json.loads(capsys.readouterr().out)["says"])
    assert told[0] != told[1]


def test_spans_alone_tell_the_course_of_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spans.jsonl"
    span = {"policy": "priced", "job": "a", "from_s": 60.0, "to_s": 660.0, "gpus": 1, "nodes": 1, "sm_mhz": 1200.0}
    other = {"trace": "t", "submission": {"name": "a"}}
    path.write_text(json.dumps(other) + "\n" + json.dumps(span | {"start_s": 8.0}) + "\n")
    assert called("explain", "a", "--at", "5m", "--decisions", path) == 0
    assert "1 min 00 s to 11 min 00 s: 1 GPU on 1 node, 1200 MHz" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("job-0", "--at", "10m"), "add --trace FILE or --decisions FILE, or leave it out"),
        (
            ("job-0", "--at", "10m", "--trace", "TRACE", "--decisions", "TRACE"),
            "both say where the decision",
        ),
        (("job-0", "--trace", "TRACE", *SMALL), "say at which moment of the simulation: --at 2h"),
        (("job-0", "--at", "10m", "--trace", "TRACE"), "--trace needs --gpu"),
        (("job-0", "--at", "soon", "--trace", "TRACE", *SMALL), "is no time"),
        (("nobody", "--at", "10m", "--trace", "TRACE", *SMALL), "has no job 'nobody'; it begins with job-0"),
        (("job-9", "--at", "10m", "--trace", "TRACE", *SMALL), "after the first one; give --at "),
        (("job-0", "--at", "0", "--trace", "TRACE", *SMALL), "nothing has been decided about job 'job-0' by then"),
        (("job-0", "--at", "9d", "--trace", "TRACE", *SMALL), "has ended by then"),
        (("job-0", "--at", "9d", "--decisions", "/nowhere"), "cannot be read"),
        (("job-0", "--at", "9d", "--decisions", "TRACE"), "line 1 is no decision"),
    ],
)
def test_what_cannot_be_explained_is_one_line(
    args: tuple[str, ...], why: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called("explain", *(str(trace) if arg == "TRACE" else arg for arg in args)) == 2
    assert why in one_line(capsys)


def test_a_job_or_a_policy_that_a_file_does_not_have_is_one_line(
    decisions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called("explain", "job-0", "--at", "9d", "--decisions", decisions, "--policy", "pollux") == 2
    assert "has no decision of 'pollux'; it has priced, fifo" in one_line(capsys)
    assert called("explain", "job-0", "--at", "9d", "--decisions", decisions) == 2
    assert "'job-0' has ended by then" in one_line(capsys)
    assert called("explain", "nobody", "--at", "10m", "--decisions", decisions) == 2
    assert "'nobody' is not there by then" in one_line(capsys)
