import io
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

pytest.importorskip("fastapi", reason="the server's packages are not installed (pip install 'joulewise[server]')")

from rich.console import Console

from joulewise.cli import cluster_live_table as table
from joulewise.cluster.scheduler_status import JobStatus, NodeStatus, Status
from joulewise.cluster.state import Prices
from joulewise.core.knob import Setting
from joulewise.core.plain import built
from joulewise.serve import listen
from joulewise.serve.cluster import make_cluster_app
from joulewise.serve.tokens import Guard
from tests.cli.clusters import called, one_line
from tests.serve.cluster_toys import NOBODY, ToyDesk, ToySteering

NOW_S = NOBODY.time_s
BUSY = replace(
    NOBODY,
    power_w=14_200.0,
    cap_w=20_000.0,
    cap_aim_w=15_000.0,
    cap_until_s=NOW_S + 7200.0,
    compliant=True,
    energy_j=412 * 3.6e6,
    idle_j=3.6e6,
    budget_j=500 * 3.6e6,
    prices=Prices({"a100-sxm": 0.5}, joule_s=1e-5),
    nodes=(
        NodeStatus("n1", "up", "a100-sxm", 8, 8, 0, 4100.0, 4100.0, 4000.0, 5000.0, 5000.0, 0.4),
        NodeStatus("n2", "up", "a100-sxm", 8, 2, 3, None, 7000.0, 4000.0, 5000.0, None, 42.0, ("its agent is silent",)),
        NodeStatus("n3", "off", "a100-sxm", 8, 0, 0, None, 15.0, 15.0, None, None, None),
    ),
    jobs=(
        JobStatus("old", "40", "ended", "", 8, {}, energy_j=7.2e6, work=10.0, done=10.0),
        JobStatus("next", "43", "waiting", "", 0, {}, submitted_s=3.0, gpus_asked=4),
        JobStatus(
            "night-7",
            "41",
            "running",
            "resize",
            8,
            {"n1": 8},
            Setting(sm_mhz=1305),
            2900.0,
            430.0,
            1000.0,
            570.0,
            11.52e6,
            1.0,
            eta_s=NOW_S + 4320.0,
            deadline_s=NOW_S + 3600.0,
            gpus_asked=4,
        ),
        JobStatus("try", "42", "running", "", 2, {"n2": 2}, done=5.0, work_left=15.0, submitted_s=2.0),
    ),
)


def shown(status: Status, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(table.page(status))
    return out.getvalue()


def test_the_page_says_power_and_cap_first_then_prices_nodes_and_jobs():
    text = shown(BUSY)
    lines = text.splitlines()
    assert lines[0].startswith("14.2 kW of 20.0 kW  █████████████████░░░░░░░ 71%")
    assert "2 jobs run on 10 of 16 GPUs, 1 wait; 1 node asleep" in text
    assert "412 kWh so far, 1.00 kWh of it nobody's; budget 500 kWh in every 24 h 00 min" in text
    assert "cap moving to 15.0 kW, for 2 h 00 min more" in text
    assert "prices, in a job's time: a GPU for an hour 30 min 00 s, a kWh 36.0 s" in text
    assert "n2: its agent is silent" in text
    row = next(line for line in lines if line.startswith("night-7"))
    for word in ("resizing", "8 of 4", "1305 MHz", "███░░░░░ 43%", "3.20 kWh", "1 h 12 min, late"):
        assert word in row, row
    assert "■■▫▫▫··· 2/8" in text
    # Who runs first, who is done last; how far is a guess where nobody has said how much there is.
    order = [line.split()[0] for line in lines if line.split()[:1] in (["night-7"], ["try"], ["next"], ["old"])]
    assert order == ["night-7", "try", "next", "old"]
    assert "~25%" in text


def test_a_job_that_is_over_and_holds_nothing_any_more_shows_no_number_of_gpus():
    text = shown(replace(BUSY, jobs=(JobStatus("old", "40", "ended", "", 0, {}, work=10.0, done=10.0),)))
    row = next(line for line in text.splitlines() if line.startswith("old"))
    assert row.split()[:3] == ["old", "ended", "–"]


def test_the_page_fits_eighty_columns():
    assert max(map(len, shown(BUSY, 80).splitlines())) <= 80


def test_a_cap_that_is_passed_stands_out():
    assert "110%, above the cap" in shown(replace(BUSY, power_w=22_000.0, compliant=False))


def test_nothing_to_show_says_what_to_do():
    assert "no power cap" in shown(NOBODY)
    assert "hand one in with 'joulewise cluster submit'" in shown(NOBODY)


def test_an_engine_that_is_lost_is_said():
    assert "the engine does not answer: slurmctld is down" in shown(replace(BUSY, engine="slurmctld is down"))


def test_of_many_nodes_those_in_trouble_are_shown():
    fine = BUSY.nodes[0]
    many = (*(replace(fine, name=f"n{number}") for number in range(40)), replace(fine, name="bad", state="down"))
    text = shown(replace(BUSY, nodes=many))
    assert "bad " in text
    assert "… and 25 more" in text


STEERING = ToySteering(now=BUSY)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    app = make_cluster_app(STEERING, ToyDesk(), Guard(local_users=True))
    with listen.bound("127.0.0.1", 0) as listening, listen.serving(app, listening):
        yield listen.url_of(listening)


def test_status_asks_the_server_that_is_named(url, capsys, monkeypatch):
    assert called("status", "--server", url) == 0
    assert "14.2 kW of 20.0 kW" in capsys.readouterr().out
    monkeypatch.setenv("JOULEWISE_CLUSTER", url.removeprefix("http://"))
    assert called("status", "--json") == 0
    assert built(Status, json.loads(capsys.readouterr().out)) == BUSY


def test_where_no_scheduler_answers_one_line_says_how_to_start_one(capsys):
    with listen.bound("127.0.0.1", 0) as listening:
        nobody = listen.url_of(listening)
    assert called("status", "--server", nobody) == 1
    assert "is 'joulewise cluster up' running there?" in one_line(capsys)


def test_live_is_drawn_anew_until_q(url, in_terminal, environ):
    import sys

    command = [sys.executable, "-m", "joulewise", "cluster", "status", "--live", "--server", url]
    terminal = in_terminal(command, **environ)
    terminal.read_until("night-7")
    terminal.type("q")
    assert terminal.finish() == 0


def test_what_a_node_says_of_its_trouble_is_one_line_and_cannot_pass_for_another():
    node = replace(BUSY.nodes[1], says=("bad\n12:00:00  power cap: 99 kW, by root (uid 0)",))
    (line,) = table.troubles(replace(NOBODY, nodes=(node,)))
    assert line == "n2: bad 12:00:00 power cap: 99 kW, by root (uid 0)"
