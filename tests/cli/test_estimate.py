"""``joulewise estimate``: a fleet's history in a real Prometheus becomes a saving whose interval holds the truth."""

import json
from datetime import UTC, datetime

import pytest

from bench.estimate_history import START_S, Place, history, openmetrics
from bench.estimate_truths import watched
from joulewise.cli import main
from joulewise.cli.estimate import ends_s, matchers, window_s
from joulewise.core.errors import BadSpec
from tests import preloaded
from tests.monitor.answering import answering, answering_by

HOURS = 2.0
UNTIL = datetime.fromtimestamp(START_S + HOURS * 3600.0, UTC).strftime("%Y-%m-%dT%H:%M")
RANGE = ("--days", str(HOURS / 24.0), "--until", UNTIL)


def called(*args: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, ("estimate", *args))])
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def recorded():
    """Two hours of twelve virtual GPUs: as text for a Prometheus, what could truly be saved by job, and its series."""
    jobs = watched(None, count=6, seed=4)
    places = [
        Place(job, f"team/{job.case.name}", gpus=1 + place % 3, hours=1.5, idle_hours=0.25, free_hours=0.25)
        for place, job in enumerate(jobs)
    ]
    lines = history(places, reset=True)
    return openmetrics(lines), {place.job: place.watched.possible(0.02) for place in places}, lines


@pytest.fixture
def fleet(prometheus, recorded):
    """A Prometheus that has them."""
    text, truth, lines = recorded
    return prometheus(history=text), truth, lines


def test_the_stated_interval_holds_the_true_saving_of_a_fleet_in_a_real_prometheus(fleet):
    server, truth, lines = fleet
    done = preloaded.run("estimate", "--prometheus", server.url, *RANGE, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    jobs = {job["job"]: job["saving"] for job in found["jobs"]}
    assert jobs.keys() == truth.keys()
    inside = [
        job["possible_share"]["low"] <= truth[name] <= job["possible_share"]["high"] for name, job in jobs.items()
    ]
    assert sum(inside) >= len(truth) - 1
    true_kwh = sum(truth[name] * job["kwh"] for name, job in jobs.items())
    assert found["saving"]["possible_kwh"]["low"] <= true_kwh <= found["saving"]["possible_kwh"]["high"]
    # The joules are those of the history: mean power of every sample × time, a day.
    power_w = sum(sum(line.values) for line in lines if line.series == "DCGM_FI_DEV_POWER_USAGE")
    assert found["kwh"] == pytest.approx(power_w * 30.0 / 3.6e6 * 24.0 / HOURS, rel=0.03)
    assert found["gpus"] == 12
    assert found["held_kwh"] > 0.0
    assert found["free_kwh"] > 0.0


def test_people_get_the_result_first_within_80_columns_a_page_and_a_picture(fleet, capsys, monkeypatch, tmp_path):
    server, _, _ = fleet
    monkeypatch.setenv("COLUMNS", "80")
    page, picture = tmp_path / "fleet.html", tmp_path / "fleet.png"
    priced = (
        "--kwh-price",
        0.3,
        "--carbon-g-per-kwh",
        380,
        "--carbon-source",
        "a grid",
        "--match",
        '{modelName=~"NVIDIA.*"}',
    )
    assert called("--prometheus", server.url, *RANGE, "--out", page, "--plot", picture, *priced) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].startswith("Tuning would save ")
    assert max(map(len, lines)) <= 80
    for words in (
        "a year, at 0.3 a kWh",
        "at 380 g a kWh, source: a grid",
        "NVIDIA H200",
        "Idle GPUs take",
        "Start with",
        "not known:",
    ):
        assert words in " ".join(" ".join(lines).split())
    assert "Tesla" not in shown.out  # does not match
    assert "</html>" in page.read_text()
    assert picture.stat().st_size > 1000
    assert called("--prometheus", server.url, *RANGE, "--match", '{cluster="elsewhere"}') == 1
    assert "check --match" in capsys.readouterr().err


def test_a_prometheus_without_such_series_is_one_line_with_the_way_out(prometheus, capsys):
    assert called("--prometheus", prometheus().url, "--days", 1) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "has no DCGM series between 20" in said.err
    assert " UTC; is dcgm-exporter scraped" in said.err
    assert said.err.count("\n") == 1


def test_a_token_and_headers_go_with_the_questions_and_are_not_shown(tmp_path, capsys):
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    with answering(401, b"") as (url, asked):
        assert called("--prometheus", url, "--token-file", token, "--header", "X-Scope-OrgID: a") == 2
    assert asked[0][2]["Authorization"] == "Bearer s3cret"
    assert asked[0][2]["X-Scope-OrgID".title()] == "a" or asked[0][2]["X-Scope-OrgID"] == "a"
    assert "s3cret" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--prometheus", "nowhere"), "is no server's address"),
        (("--prometheus", "http://127.0.0.1:9"), "does not answer"),
        (("--prometheus", "http://x", "--days", "0"), "--days 0"),
        (("--prometheus", "http://x", "--step", "soon"), "--step"),
        (("--prometheus", "http://x", "--step", "1s"), "--step 1s is outside 15 s to 1 h"),
        (("--prometheus", "http://x", "--step", "1d"), "--step 1d is outside 15 s to 1 h"),
        (("--prometheus", "http://x", "--until", "2100-01-01"), "--until 2100-01-01 is in the future"),
        (("--prometheus", "http://x", "--until", "0001-01-01"), "--until"),
        (("--prometheus", "http://x", "--carbon-source", "a grid"), "add --carbon-g-per-kwh"),
        (("--prometheus", "http://x", "--user", "ada"), "--user and --password-file go together"),
        (("--prometheus", "https://x", "--ca-file", "/nowhere/ca"), "--ca-file"),
        (("--prometheus", "http://x", "--until", "yesterday"), "--until"),
        (("--prometheus", "http://x", "--match", "cluster=a"), "--match"),
        (("--prometheus", "http://x", "--max-slowdown", "5"), "--max-slowdown"),
        (("--prometheus", "http://x", "--kwh-price", "-1"), "--kwh-price"),
        (("--prometheus", "http://x", "--carbon-g-per-kwh", "nan"), "--carbon-g-per-kwh"),
        (("--prometheus", "http://x", "--header", "nothing"), "--header"),
        (("--prometheus", "http://x", "--token-file", "/nowhere/token"), "--token-file"),
        (("--prometheus", "http://x", "--out", "page.txt"), "--out"),
        (("--prometheus", "http://x", "--plot", "fleet.gif"), "--plot"),
        (("--days", "1"), "--prometheus"),
    ],
)
def test_what_cannot_be_meant_is_one_line(flags, words, capsys):
    assert called(*flags) in (1, 2)
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
    assert said.err.count("\n") == 1


def test_a_window_is_five_minutes_for_a_week_and_a_minute_at_least():
    assert [window_s(None, days) for days in (0.1, 1.0, 7.0, 30.0)] == [60.0, 60.0, 300.0, 1320.0]
    assert [window_s(text, 7.0) for text in ("90s", "5m", "1h", "30")] == [90.0, 300.0, 3600.0, 30.0]


def test_a_time_without_a_zone_is_utc():
    assert ends_s("2023-11-14T22:00", 1.8e9) == 1_699_999_200.0
    assert ends_s("2023-11-15T00:00+02:00", 1.8e9) == 1_699_999_200.0
    assert ends_s(None, 1.8e9) == 1.8e9


def test_a_history_does_not_end_in_the_future():
    with pytest.raises(
        BadSpec, match=r"is in the future, of which nothing is kept: it is 2023-11-14T21:59 \(UTC\) now"
    ):
        ends_s("2023-11-14T22:00", 1_699_999_199.0)


@pytest.mark.parametrize("text", ['{a="b"}', 'a="b"', '{a="b",c=~"d.*"}', '{a!="}",}', ""])
def test_label_matchers_are_taken_with_or_without_braces(text):
    assert matchers(text) in ('a="b"', 'a="b",c=~"d.*"', 'a!="}",', "")


@pytest.mark.parametrize("text", ['{a="b"} or vector(1)', "{a='b'}", 'a="b"} + x{', "}"])
def test_anything_but_label_matchers_is_refused(text):
    with pytest.raises(BadSpec, match="--match"):
        matchers(text)


def dcgm(asked: dict[str, str], power_w: float = 500.0) -> dict[str, object]:
    """What a Prometheus answers that has the power of one GPU, every 30 s, as far back as anybody asks."""
    labels = {"UUID": "GPU-1", "modelName": "NVIDIA H200", "exported_pod": "a-rather-long-name-of-a-training-0"}
    query = asked["query"]
    if "step" not in asked:
        count = "20" if query.startswith("count_over_time") else "1"
        return {"resultType": "vector", "result": [{"metric": labels, "value": [float(asked["time"]), count]}]}
    start_s, end_s, step_s = (float(asked[name]) for name in ("start", "end", "step"))
    moments = [start_s + place * step_s for place in range(round((end_s - start_s) / step_s) + 1)]
    values = [[at_s, str(power_w)] for at_s in moments]
    return {
        "resultType": "matrix",
        "result": [{"metric": labels, "values": values}] if "POWER_USAGE" in query else [],
    }


def test_what_the_server_warns_of_is_said_on_stderr_and_among_what_it_rests_on(capsys):
    warned = ["store 10.0.0.3:10901 unavailable"]
    with answering_by(lambda _, asked: (200, {"status": "success", "data": dcgm(asked), "warnings": warned})) as (u, _):
        assert called("--prometheus", u, "--days", 0.1, "--json") == 0
    said = capsys.readouterr()
    assert said.err.count("store 10.0.0.3:10901 unavailable") == 1
    assert any(warned[0] in line for line in json.loads(said.out)["rests_on"])


@pytest.mark.parametrize("columns", [80, 60, 40])
def test_no_number_is_cut_on_a_narrow_terminal(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    with answering_by(lambda _, asked: (200, {"status": "success", "data": dcgm(asked)})) as (url, _):
        assert called("--prometheus", url, "--days", 0.1) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    model = next(line for line in lines if line.startswith("NVIDIA H") and "(" in line)
    assert "…" not in model
    assert model.endswith(")")
    assert ("12.0" in model) == (columns >= 60)  # kWh a day


def test_a_label_that_is_not_there_is_refused_with_those_that_are(capsys):
    with answering_by(lambda _, asked: (200, {"status": "success", "data": dcgm(asked)})) as (url, _):
        assert called("--prometheus", url, "--days", 0.1, "--by", "usr") == 2
    assert "--by usr: no series has that label; there are UUID, exported_pod, modelName" in capsys.readouterr().err


def test_a_secret_that_goes_to_another_machine_in_the_clear_is_remarked_on(tmp_path, capsys):
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    assert called("--prometheus", "http://nowhere.invalid", "--token-file", token) == 1
    said = capsys.readouterr().err
    assert "nowhere.invalid is asked over http" in said
    assert "s3cret" not in said
