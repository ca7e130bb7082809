"""``joulewise report``, as a user has it."""

import html.parser
import json
import re
import sys
import time

import pytest

from joulewise.cli import main
from joulewise.core.event import Began, Finished
from joulewise.store import open_store, views
from joulewise.store.readings import Sample
from tests.cli import made_up

EVIL = "</script><img src=x onerror=alert(1)>&\"'"
UUID = "GPU-11111111-2222"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("JOULEWISE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("JOULEWISE_DATABASE", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def store():
    opened = open_store()
    yield opened
    opened.close()


def used(energy_j=400_000.0, **more):
    of_gpu = {"energy_j": energy_j, "energy_error_j": 300.0, "gain_error": 0.02, "duration_s": 700.0}
    of_gpu |= {"source": "counter", "outcome": "reached"}
    gpu = {"uuid": UUID, "name": "NVIDIA H200", "reason": None, **of_gpu}
    return {**of_gpu, "exit_code": 0, "host_energy_j": None, "gpus": [gpu], **more}


def tuned(store, name="tuned-1", measured=None, **facts):
    journal = store.journal(name)
    for event in made_up.run(name, hold=60, **facts):
        journal.append(event)
    end = Finished(2000.0, "ended", {"measured": used() if measured is None else measured})
    store.journal(views.measured_stream(name)).append(end)
    read(store, name)


def untuned(store, name="plain-1", energy_j=300_000.0, **facts):
    known = {"tuned": False, "command": ["python", "train.py"], "gpus": [UUID], "gpu_names": ["NVIDIA H200"]}
    journal = store.journal(name)
    journal.append(Began(0.0, name, {**known, "unix_s": 1.7e9, **facts}))
    journal.append(Finished(700.0, "ended", {"measured": used(energy_j)}))
    read(store, name)


def read(store, name):
    began_s = views.one(store.tables, name).began_at_s
    rows = [Sample(began_s + second, 500.0 + second % 9, 1500.0, limit_w=700.0) for second in range(300)]
    store.readings().write(name, UUID, rows)


def report(*args, capsys, code=0):
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, args)])
    captured = capsys.readouterr()
    assert ended.value.code == code, captured.err
    return captured.out, captured.err


def verify(path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(path)])
    return ended.value.code, capsys.readouterr().out


class Tags(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.seen, self.scripts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag == "script":
            self.scripts.append(dict(attrs).get("type"))


def test_without_a_name_it_is_the_run_that_began_last_of_those_that_have_ended(store, home, capsys):
    assert "no run that has ended is kept" in report(capsys=capsys, code=2)[1]
    untuned(store, "first-1")
    untuned(store, "second-1", unix_s=1.8e9)
    going = {"tuned": False, "command": ["train"], "gpus": [], "gpu_names": [], "unix_s": time.time()}
    store.journal("third-1").append(Began(0.0, "third-1", going))
    assert report(capsys=capsys)[0].startswith("second-1: ")
    assert (home / "joulewise-second-1.html").exists()


def test_a_tuned_run_becomes_one_file_with_what_was_spent_saved_and_how(store, home, capsys):
    tuned(store)
    flags = ("--carbon-g-per-kwh", 380, "--carbon-source", "the grid's own, 2025")
    out, err = report("tuned", "--out", "run.html", *flags, capsys=capsys)
    assert out.startswith("tuned-1: saved ")
    assert "the report is run.html" in err
    text = (home / "run.html").read_text()
    for words in (
        "400.0 ± 8.0 kJ",  # sampling and 2 % of the sensor
        "the GPUs’ own energy counters",
        "saved against default in the ",
        "that were judged, probing included",
        "short baseline windows at times drawn from a seed",
        "used: 42.2 ± 1.7 g CO2e",
        "at 380 g of CO2e a kWh, source: the grid&#x27;s own, 2025",
        "SM clock at most 1500 MHz",
        "The curve is the meter’s own",
    ):
        assert words in text
    assert not re.search(r"https?:|src=|href=|@import|url\(|<link", text)
    assert Tags(text).scripts == ["application/json"]  # data, no program


def test_verify_takes_the_page_and_sees_what_was_changed_in_it(store, home, capsys):
    tuned(store)
    report("tuned-1", "-o", "run.html", "--carbon-g-per-kwh", 380, capsys=capsys)
    page = home / "run.html"
    assert verify(page, capsys)[0] == 0
    whole = page.read_text()
    page.write_text(whole.replace("400.0 ± 8.0 kJ", "300.0 ± 8.0 kJ"))
    code, said = verify(page, capsys)
    assert code == 1
    assert "‘What was spent’" in said
    page.write_text(whole.replace("42.2 ± ", "12.2 ± "))
    assert "‘Carbon’" in verify(page, capsys)[1]
    page.write_text(whole.replace('"energy_j": 400000.0', '"energy_j": 300000.0'))
    assert "is not what was kept of it" in verify(page, capsys)[1]


def test_without_a_factor_nothing_is_said_of_carbon(store, home, capsys):
    tuned(store)
    report("tuned-1", capsys=capsys)
    assert "CO2" not in (home / "joulewise-tuned-1.html").read_text()
    assert json.loads(report("tuned-1", "--json", capsys=capsys)[0])["carbon"] is None


def test_a_factor_without_a_source_says_so(store, home, capsys):
    tuned(store)
    report("tuned-1", "--carbon-g-per-kwh", 380, capsys=capsys)
    assert "380 g of CO2e a kWh, no source was given" in (home / "joulewise-tuned-1.html").read_text()


def test_a_run_that_was_not_tuned_has_a_report_that_claims_nothing(store, home, capsys):
    untuned(store, set={"sm_mhz": 1200})
    out, _ = report("plain", capsys=capsys)
    assert "300.00 ± 0.30 kJ in 11 min 40 s" in out
    text = (home / "joulewise-plain-1.html").read_text()
    assert "300.0 ± 6.0 kJ" in text
    assert "Nothing was tuned, so no saving is claimed." in text
    assert "The user had set SM clock at most 1200 MHz." in text
    assert "<svg" in text  # its readings
    assert "saved" not in text.partition("<script")[0]
    assert "against the same job" not in text
    assert json.loads(report("plain", "--json", capsys=capsys)[0])["claim"] is None
    with pytest.raises(SystemExit) as ended:
        main(["verify", "joulewise-plain-1.html"])
    assert ended.value.code == 2
    assert "was not tuned" in capsys.readouterr().err


def test_a_run_without_readings_or_measured_energy_has_one_too(store, home, capsys):
    store.journal("bare").append(Began(0.0, "bare", {"tuned": False, "command": ["true"]}))
    store.journal("bare").append(Finished(1.0, "ended", {}))
    report("bare", "--png", "bare.png", "--out", "bare.html", capsys=capsys)
    assert "No energy of the whole command was measured." in (home / "bare.html").read_text()
    assert (home / "bare.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_is_drawn_and_no_page_unless_asked_for(store, home, capsys):
    tuned(store, command=["python", "-c", "$x$ \n"])
    report("tuned-1", "--plot", "run.png", capsys=capsys)
    assert (home / "run.png").read_bytes().startswith(b"\x89PNG")
    assert list(home.glob("*.html")) == []


def test_without_matplotlib_a_picture_is_refused_and_nothing_written(store, home, capsys, monkeypatch):
    tuned(store)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    _, err = report("tuned-1", "--png", "run.png", "--out", "run.html", capsys=capsys, code=1)
    assert "pip install 'joulewise[plot]'" in err
    assert not (home / "run.html").exists()


def test_json_has_every_number(store, capsys):
    tuned(store)
    flags = ("--json", "--carbon-g-per-kwh", 500)
    told = json.loads(report("tuned-1", *flags, capsys=capsys)[0])
    assert told["measured"]["energy_j"] == 400_000.0
    assert told["total_error_j"] == pytest.approx(8005.6, abs=0.1)
    assert told["claim"]["energy_change"] == pytest.approx(-0.08, abs=0.02)
    assert told["carbon"]["used_g"]["value"] == pytest.approx(400_000 / 3.6e6 * 500)
    assert told["decisions"]
    assert "host" not in told["facts"]


def test_whatever_a_run_is_called_stays_text(store, home, capsys):
    evil = {"command": [EVIL], "gpu_names": [EVIL], "wanted": EVIL}
    gpu = {**used()["gpus"][0], "name": EVIL}
    tuned(store, EVIL, used(gpus=[gpu, gpu], source=EVIL), **evil)
    report(EVIL, "--out", "run.html", "--carbon-g-per-kwh", 1, "--carbon-source", EVIL, capsys=capsys)
    tags = Tags((home / "run.html").read_text())
    assert "img" not in tags.seen
    assert tags.scripts == ["application/json"]
    report(EVIL, capsys=capsys)
    (made,) = home.glob("joulewise-*.html")  # a name that is a path, or markup, is no path here
    assert re.fullmatch(r"[\w.-]+", made.name)
    assert verify(home / "run.html", capsys)[0] == 0


def test_two_runs_are_compared_in_words_as_a_page_and_as_json(store, home, capsys):
    untuned(store, "first", 300_000.0)
    untuned(store, "second", 270_000.0)
    out, _ = report("--compare", "first", "sec", "--out", "both.html", capsys=capsys)
    assert out.startswith("second: −10.0 % ± 0.3 % energy, +0.0 % time against first")
    assert "not comparable" not in out
    assert "−10.0 % ± 0.3 %" in (home / "both.html").read_text()
    told = json.loads(report("--compare", "first", "second", "--json", capsys=capsys)[0])
    assert told["comparable"] is True
    assert told["differences"][0]["change"] == -30_000.0


def test_two_runs_are_compared_in_co2e_where_a_factor_is_given(store, capsys):
    untuned(store, "first", 360_000.0)
    untuned(store, "second", 180_000.0)
    flags = ("--compare", "first", "second", "--carbon-g-per-kwh", 400, "--carbon-source", "ENTSO-E")
    out, _ = report(*flags, capsys=capsys)
    assert re.search(r"CO2e of the run +40\.0 ± 1\.6 g CO2e +20\.00 ± 0\.79 g CO2e +−20\.00 ± 0\.\d+ g CO2e +−50", out)
    assert "at 400 g of CO2e a kWh, source: ENTSO-E" in out
    assert json.loads(report(*flags, "--json", capsys=capsys)[0])["carbon"]["g_per_kwh"] == 400.0


def test_runs_that_are_not_alike_are_compared_with_a_warning(store, capsys):
    untuned(store, "first")
    untuned(store, "second", command=["other"], gpu_names=["NVIDIA A100"])
    out, _ = report("--compare", "first", "second", capsys=capsys)
    assert "not comparable: other GPUs: NVIDIA H200 against NVIDIA A100" in out
    assert "not comparable: other commands: python train.py against other" in out


def test_a_run_that_is_still_going_has_no_report_yet(store, capsys):
    store.journal("now").append(Began(0.0, "now", {"tuned": False, "command": ["true"]}))
    _, err = report("now", capsys=capsys, code=2)
    assert "run now is still going; wait for its end" in err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("tuned-1", "--compare", "a", "b"), "name one RUN, or two with --compare A B"),
        (("nothing",), "no run is called 'nothing'"),
        (("--compare", "tuned-1", "nothing"), "no run is called 'nothing'"),
        (("--compare", "tuned-1", "tuned"), "names run tuned-1 twice"),
        (
            ("--compare", "tuned-1", "tuned", "--plot", "x.png"),
            "--compare has no --plot; ask for the report of each run",
        ),
        (("tuned-1", "--out", "no/x.html"), "cannot be written: no such file or directory"),
        (("tuned-1", "--out", "x.txt"), "name it x.txt.html"),
        (("tuned-1", "--plot", "no/x.png"), "cannot be written: no such file or directory"),
        (("tuned-1", "--plot", "x.txt"), "must end in .svg, .png, .pdf"),
        (("tuned-1", "--carbon-source", "x"), "add --carbon-g-per-kwh"),
        (("tuned-1", "--carbon-g-per-kwh", "-1"), "must be 0 or more"),
        (("tuned-1", "--carbon-g-per-kwh", "nan"), "must be 0 or more"),
        (("tuned-1", "--database", "mysql://x"), "mysql"),
        (("tuned-1", "--database", "none.db"), "--database none.db is no file; name a joulewise.db, or a server"),
    ],
)
def test_what_cannot_be_done_is_one_line(args, words, store, home, capsys):
    tuned(store)
    out, err = report(*args, capsys=capsys, code=2)
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
    assert list(home.glob("*.html")) == []


@pytest.mark.xdist_group("postgresql")
def test_runs_in_postgresql_have_reports(database_url, home, capsys):
    store = open_store(database_url)
    untuned(store)
    store.close()
    report("plain", "--database", database_url, "--out", "run.html", capsys=capsys)
    assert "300.0 ± 6.0 kJ" in (home / "run.html").read_text()
