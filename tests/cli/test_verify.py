import json
import re

import pytest

from joulewise.cli import main
from joulewise.cli.verify import _say
from joulewise.core.measurement import Reading
from joulewise.report.claim import Claim
from joulewise.report.figures import Beyond
from joulewise.report.history import Series
from joulewise.report.page import page
from joulewise.report.story import Story
from joulewise.store import Database, SqliteJournal
from tests.cli import made_up

RUN = "20260101-000000-abcd"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("JOULEWISE_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def report(home):
    """A report, and the journal that it was made from."""
    events = made_up.run(RUN)
    journal = SqliteJournal(Database(), RUN)
    for event in events:
        journal.append(event)
    story = Story.of(events)
    file = home / "report.html"
    series = Series(width_s=5.0)
    for place in range(120):
        series.add(Reading(time_s=made_up.START_S + 5.0 * place, power_w=600.0 + place, sm_mhz=1500.0))
    expected = [(0.0, 0.0), (0.01, -0.05)]
    file.write_text(page(story, Beyond.of(story, [series], expected)), encoding="utf-8")
    return file


def verify(*args, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["verify", *map(str, args)])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def change(statement, *values):
    with Database().writing() as connection:
        assert connection.execute(statement, values).rowcount > 0


def test_a_true_report_is_verified(report, capsys):
    code, out, err = verify(report, capsys=capsys)
    assert (code, err) == (0, "")
    assert out.startswith(f"run {RUN}: saved ")
    assert "verified: recomputed from the journal" in out
    proof = Claim.of(Story.of(made_up.run(RUN)))
    assert proof.windows > 1 < proof.pairs
    assert f"; {proof.windows} baseline windows where seed 1 drew them, and {proof.pairs} pairs in the order" in out
    assert (
        " that it drew, count\nlabel: recomputed from blocks — not countersigned\n  no readings\n  seal sha256:" in out
    )


def test_a_run_is_verified_by_its_name_too(report, capsys):
    code, out, _ = verify("--json", RUN[:12], capsys=capsys)
    assert code == 0
    answer = json.loads(out)
    assert (answer["run"], answer["problems"]) == (RUN, [])
    assert (answer["windows"], answer["pairs"]) == (answer["claim"]["windows"], answer["claim"]["pairs"])


@pytest.mark.parametrize(
    ("windows", "pairs", "lie"),
    [
        (1, 0, "; 1 baseline window where seed 7 drew it"),
        (2, 23, "; 2 baseline windows where seed 7 drew them, and 23 pairs in the order that it drew, count"),
        (0, 5, "; 5 pairs in the order that seed 7 drew count"),
        (0, 0, ""),
    ],
)
def test_what_a_saving_rests_on_is_counted_as_it_counts(windows, pairs, lie, capsys):
    _say("x", {"headline": "h", "problems": [], "held": True, "seed": 7, "windows": windows, "pairs": pairs})
    assert capsys.readouterr().out == f"run x: h\nverified: recomputed from the journal{lie}\n"


def test_a_headline_that_was_bettered_is_found(report, capsys):
    report.write_text(re.sub(r"<h1>saved [\d.]+&nbsp;%", "<h1>saved 18.1 %", report.read_text()))
    code, out, _ = verify(report, capsys=capsys)
    assert code == 1
    assert "NOT verified: 1 discrepancy" in out
    assert "not what the journal says: the headline and what is under it" in out


def test_numbers_that_were_bettered_are_found(report, capsys):
    report.write_text(re.sub(r'"energy_change": -0\.0\d+', '"energy_change": -0.2', report.read_text()))
    code, out, _ = verify(report, capsys=capsys)
    assert code == 1
    assert "the report says energy change -20.0000 %, the journal energy change -" in out


def test_a_block_that_was_edited_is_found(report, capsys):
    number = next(
        number for number, event in SqliteJournal(Database(), RUN).read() if getattr(event, "role", "") == "hold"
    )
    change("UPDATE events SET event = replace(event, '\"energy_j\":2', '\"energy_j\":1') WHERE id = ?", number)
    code, out, _ = verify(report, capsys=capsys)
    assert code == 1
    assert "its events were changed since" in out


def test_a_window_that_was_taken_out_is_found(report, capsys):
    number = next(
        number for number, event in SqliteJournal(Database(), RUN).read() if getattr(event, "role", "") == "proof"
    )
    change("DELETE FROM events WHERE id = ?", number)
    code, out, _ = verify(report, capsys=capsys)
    assert code == 1
    assert "the report was made from" in out


def test_a_run_that_went_on_after_its_report_still_bears_it_out(report, capsys):
    SqliteJournal(Database(), RUN).append(made_up.run(RUN)[0])
    assert verify(report, capsys=capsys)[0] == 0


def test_a_journal_elsewhere_is_named(report, home, capsys):
    Database().close()
    (home / "home").rename(home / "elsewhere")
    code, _, err = verify(report, capsys=capsys)
    assert code == 2
    assert "--database FILE or URL" in err
    for flag in ("--database", "--journal"):  # as it is called everywhere, and as it was called here
        assert verify(report, flag, home / "elsewhere" / "joulewise.db", capsys=capsys)[0] == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"<html></html>", "no report of joulewise"), (b"\xff\xfe", "not text"), (None, "cannot be read")],
)
def test_what_is_no_report_is_one_line(content, says, home, capsys):
    file = home / "x.html"
    if content is not None:
        file.write_bytes(content)
    code, out, err = verify(file, capsys=capsys)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


def test_an_unknown_run_or_journal_is_one_line(home, capsys):
    assert verify("nobody", capsys=capsys)[0] == 2
    code, _, err = verify("nobody", "--database", home / "none.db", capsys=capsys)
    assert code == 2
    assert "is no file" in err
    assert not (home / "none.db").exists()


@pytest.mark.parametrize(
    ("forged", "by", "where"),
    [
        (r"<b>[\d.]+ ±&nbsp;[\d.]+&nbsp;kJ</b>", "<b>54 ± 5 kJ</b>", "the headline and what is under it"),
        (r"<h1>(.*?)</h1>", r"<h1>saved 31 %, 912 kJ</h1><!-- <h1>\1</h1> -->", "the headline"),
        (r"SM clock at most 1500&nbsp;MHz</td>", "SM clock at most 1200 MHz</td>", "‘What was changed, when and why’"),
        (r'<path class="line saving" d="M[\d.]+ [\d.]+', '<path class="line saving" d="M1 1', "‘Saving so far’"),
        (r"</main>", "<p>Certified.</p></main>", "what is around its parts"),
        (r"--paper: #fcfcfb", "--paper: #fcfcfa", "what is around its parts"),
    ],
)
def test_whatever_was_changed_on_the_page_is_found(forged, by, where, report, capsys):
    true = report.read_text()
    report.write_text(re.sub(forged, by, true, count=1))
    assert report.read_text() != true
    code, out, _ = verify(report, capsys=capsys)
    assert code == 1
    assert where in out


def test_a_page_of_another_version_is_not_called_verified(report, capsys):
    text = report.read_text()
    report.write_text(re.sub(r'"version": "[^"]*"', '"version": "99.0"', text))
    code, out, err = verify(report, capsys=capsys)
    assert (code, out) == (2, "")
    assert "was written by joulewise 99.0" in err
    assert f"history {RUN} --report" in err


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"title": "would set nothing"}, "was not tuned: nothing is claimed, so there is nothing to verify"),
        ({"kept": False}, "journal could not be kept"),
    ],
)
def test_a_report_that_nobody_can_verify_is_said_so(how, says, home, capsys):
    file = home / "x.html"
    file.write_text(page(Story.of(made_up.run(RUN)), **how))
    code, out, err = verify(file, capsys=capsys)
    assert (code, out) == (2, "")
    assert says in err


def test_a_report_of_a_dry_run_or_of_nothing_has_nothing_to_verify(home, capsys):
    file = home / "x.html"
    file.write_text(page(Story.of(made_up.run(RUN, dry_run=True)), title="would set"))
    assert "is of a dry run: nothing was set" in verify(file, capsys=capsys)[2]
    file.write_text(page(Story.of(()), title="not tuned: no GPU"))
    assert "nothing to verify" in verify(file, capsys=capsys)[2]


def test_what_is_wrong_is_said_in_a_user_s_words(report, capsys):
    number = next(
        number for number, event in SqliteJournal(Database(), RUN).read() if type(event).__name__ == "Decided"
    )
    change("DELETE FROM events WHERE id = ?", number + 2)
    _, out, _ = verify(RUN, capsys=capsys)
    assert "SM clock at most 1725 MHz" in out
    assert "Setting(" not in out


def test_a_run_that_held_nothing_claims_nothing(home, capsys):
    journal = SqliteJournal(Database(), RUN)
    for event in made_up.run(RUN, hold=0):
        journal.append(event)
    code, out, _ = verify(RUN, capsys=capsys)
    assert code == 0, out
    assert "nothing was held, so no saving is claimed" in out
