"""A run's report over HTTP is the one that ``joulewise report`` writes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from joulewise.cli import main
from joulewise.core.event import Began, Finished
from joulewise.report.page import parts
from joulewise.serve.app import make_app
from joulewise.serve.face import Worth
from joulewise.serve.tokens import Guard
from joulewise.store import Store, open_store, views
from tests.serve import face_toys as toys
from tests.serve.conftest import Api

GPU = {"uuid": toys.UUID, "name": "NVIDIA H200", "energy_j": 4e5, "energy_error_j": 300.0, "gain_error": 0.02}
MEASURED = {**GPU, "duration_s": 700.0, "source": "counter", "exit_code": 0, "gpus": [{**GPU, "source": "counter"}]}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("JOULEWISE_DATABASE", str(tmp_path / "jobs.db"))
    made = open_store(tmp_path / "jobs.db")
    yield made
    made.close()


def measured(store: Store, name: str) -> None:
    store.journal(views.measured_stream(name)).append(Finished(2000.0, "ended", {"measured": MEASURED}))


def over_http(store: Store, name: str, worth: Worth | None = None) -> bytes:
    answer = Api(make_app(store, Guard(local_users=True), worth=worth))("GET", f"/api/runs/{name}/report")
    assert answer.status_code == 200, answer.text
    return answer.content


def by_command(folder: Path, name: str, *flags: str) -> bytes:
    with pytest.raises(SystemExit) as ended:
        main(["report", name, "--out", str(folder / "report.html"), *flags])
    assert ended.value.code == 0
    return (folder / "report.html").read_bytes()


@pytest.mark.parametrize("carbon", [False, True])
def test_a_tuned_runs_report_is_the_same_both_ways(store: Store, tmp_path: Path, carbon: bool) -> None:
    toys.tuned(store)
    toys.readings(store, toys.TUNED)
    measured(store, toys.TUNED)
    worth = Worth(carbon_g_per_kwh=380.0, carbon_source="the grid <b>") if carbon else None
    flags = ["--carbon-g-per-kwh", "380", "--carbon-source", "the grid <b>"] if carbon else []
    page = over_http(store, toys.TUNED, worth)
    assert page == by_command(tmp_path, toys.TUNED, *flags)
    sections = parts(page.decode())
    assert {"‘What was spent’", "‘Power and clock’", "‘How it was measured’"} <= set(sections)
    assert ("‘Carbon’" in sections) is carbon
    assert "NVIDIA H200" in sections["‘What was spent’"]


def test_a_measured_runs_report_is_the_same_both_ways(store: Store, tmp_path: Path) -> None:
    toys.plain_run(store, "plain-1")
    toys.readings(store, "plain-1")
    page = over_http(store, "plain-1")
    assert page == by_command(tmp_path, "plain-1")
    assert "‘What was spent’" in parts(page.decode())


def test_verify_takes_what_the_server_handed_out(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    toys.tuned(store)
    toys.readings(store, toys.TUNED)
    measured(store, toys.TUNED)
    file = tmp_path / "handed-out.html"
    file.write_bytes(over_http(store, toys.TUNED, Worth(carbon_g_per_kwh=380.0)))
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(file)])
    assert ended.value.code == 0, capsys.readouterr()


def test_a_run_that_goes_on_has_a_report_that_does_not_say_that_nothing_was_measured(store: Store) -> None:
    facts = {"command": ["python", "train.py"], "gpu_names": ["NVIDIA H200"], "tuned": False}
    store.journal("goes-on").append(Began(5.0, "goes-on", facts))
    sections = parts(over_http(store, "goes-on").decode())
    assert "‘What was spent’" not in sections


def test_a_name_that_is_no_text_has_a_report(store: Store) -> None:
    facts = {"command": ["python", "\udcff.py"], "gpu_names": ["NVIDIA H200"], "tuned": False}
    toys.write(store, "odd", [Began(5.0, "odd", facts), Finished(9.0, "ended", {"measured": MEASURED})])
    assert b"?.py" in over_http(store, "odd")
