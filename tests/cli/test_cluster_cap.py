import json
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="the server's packages are not installed (pip install 'joulewise[server]')")

from joulewise.serve import listen, tokens
from joulewise.serve.cluster import make_cluster_app
from joulewise.serve.tokens import Guard, Scope
from tests.cli.clusters import called, one_line
from tests.serve.cluster_toys import ToyDesk, ToySteering

SECRET, TOKEN = tokens.make(Scope.WRITE)
READ_SECRET, READ = tokens.make(Scope.READ)
STEERING = ToySteering()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    app = make_cluster_app(STEERING, ToyDesk(), Guard([TOKEN, READ]))
    with listen.bound("127.0.0.1", 0) as listening, listen.serving(app, listening):
        yield listen.url_of(listening)


@pytest.fixture(autouse=True)
def said(monkeypatch, url) -> list[tuple[object, ...]]:
    """What the scheduler has heard in this test."""
    monkeypatch.setenv("JOULEWISE_CLUSTER", url)
    monkeypatch.setenv("JOULEWISE_TOKEN", SECRET)
    STEERING.said.clear()
    return STEERING.said


@pytest.mark.parametrize(
    ("args", "heard", "says"),
    [
        (("cap", "20kW"), ("cap", 20_000.0, None, None), "may draw 20.0 kW from now on"),
        (("cap", "none"), ("cap", None, None, None), "may draw any power from now on"),
        (
            ("cap", "15kW", "--for", "3h", "--ramp", "1kW/min"),
            ("cap", 15_000.0, 10_800.0, pytest.approx(1000 / 60)),
            "may draw 15.0 kW for 3 h 00 min, at most 1.00 kW a minute nearer",
        ),
        (("budget", "500kWh/day"), ("budget", 1.8e9, 86_400.0), "may spend 500 kWh in every 24 h 00 min"),
        (("budget", "none"), ("budget", None, 86_400.0), "is not limited"),
    ],
)
def test_a_limit_reaches_the_scheduler_and_is_said_back(args, heard, says, said, capsys):
    assert called(*args) == 0
    assert said == [heard]
    assert says in one_line(capsys)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("cap", "lots"), "is no power; write 700 or 20kW"),
        (("cap", "20kW", "--for", "soon"), "is no time"),
        (("cap", "20kW", "--ramp", "1kW"), "does not say how fast; write 1kW/min"),
        (("cap", "10"), "below the 1000 W of an idle cluster"),
        (("budget", "500kWh"), "does not say for how long"),
        (("cap", "20kW", "--server", "ftp://x"), "is no server's address"),
        (("cap", "20kW", "--token-file", "/nowhere"), "cannot be read"),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_changes(args, says, said, capsys):
    assert called(*args) == 2
    assert says in one_line(capsys)
    assert said == []


def test_one_who_may_only_read_cannot_set_a_cap(said, capsys, monkeypatch):
    monkeypatch.setenv("JOULEWISE_TOKEN", READ_SECRET)
    assert called("cap", "20kW") == 2
    assert "may only read" in one_line(capsys)
    assert said == []


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("cap", "15kW", "--for", "3h"), {"cap_w": 15_000.0, "for_s": 10_800.0, "ramp_w_per_s": None}),
        (("cap", "none"), {"cap_w": None, "for_s": None, "ramp_w_per_s": None}),
        (("budget", "500kWh/day"), {"budget_j": 1.8e9, "period_s": 86_400.0}),
        (("budget", "none"), {"budget_j": None, "period_s": None}),
    ],
)
def test_a_limit_is_said_back_to_a_script_as_one_json_object(args, told, said, capsys):
    assert called(*args, "--json") == 0
    shown = capsys.readouterr()
    assert (json.loads(shown.out), shown.err) == (told, "")
    assert len(said) == 1
