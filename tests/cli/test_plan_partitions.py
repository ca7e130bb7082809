"""``joulewise plan partitions``: measured schedules become a frontier, a choice and a picture; bad tables one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_plan import called, one_line

HEAD = "part,slot,sms,sm_mhz,time_s,energy_j\n"
ROWS = """attention,sequential,20,1410,0.00320,0.95
attention,sequential,20,1410,0.00318,0.93
attention,rope,9,1410,0.00267,0.93
attention,rope,9,1410,0.00269,0.91
attention,rope,3,1410,0.0061,1.4
attention,attn,9,1100,0.0031,0.80
attention,attn,9,1100,0.0031,0.78
mlp,sequential,16,1410,0.0040,1.00
mlp,norm,16,1410,0.0042,1.20
mlp,sequential,16,1100,0.0046,0.80
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "schedules.csv"
    path.write_text(HEAD + ROWS)
    return path


def test_overlapped_or_sequential_is_chosen_point_by_point(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("partitions", table, "--json") == 0
    found = json.loads(capsys.readouterr().out)["partitions"]
    assert [(each["how"], each["chosen"], each["setting"]) for each in found["attention"]] == [
        ("rope×9", "overlapped", {"sm_mhz": 1410.0}),
        ("attn×9", "overlapped", {"sm_mhz": 1100.0}),
    ]
    assert [each["chosen"] for each in found["mlp"]] == ["sequential", "sequential"]
    first = found["attention"][0]
    assert first["time_s"] == pytest.approx(0.00268)
    assert first["energy_error_j"] == pytest.approx(0.01)
    assert first["time_over_sequential"] == pytest.approx(0.00268 / 0.00319)
    assert first["energy_over_sequential"] == pytest.approx(0.92 / 0.94)


def test_a_table_and_a_picture_say_what_it_is_worth(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "partitions.png"
    assert called("partitions", table, "--plot", picture) == 0
    said = " ".join(capsys.readouterr().out.split())
    worth = "the fastest takes 16.0 % less time and 2.1 % less energy than one after the other"
    assert f"attention: 2 of 4 schedules are worth having; {worth}" in said
    assert "mlp: 2 of 3 schedules are worth having; nothing is faster than one after the other" in said
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_names_in_a_table_are_no_markup_and_no_formula(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd.csv"
    path.write_text("part,slot,sms,time_s,energy_j\n[red]$x,[bold]a,2,0.1,3\n")
    assert called("partitions", path, "--plot", tmp_path / "odd.svg") == 0
    said = capsys.readouterr().out
    assert "[red]$x" in said
    assert "[bold]a×2" in said
    assert "none was measured that runs one after the other" in " ".join(said.split())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no column 'part'"),
        ("part,slot,sms,time_s\n", "has no column 'energy_j'"),
        (HEAD, "has no row"),
        (HEAD + "a,b,0,1410,1,1\n", "line 2: sms '0' is not a number above 0"),
        (HEAD + "a,b,1.5,1410,1,1\n", "line 2: sms 1.5 is not a whole number"),
        (HEAD + "a,b,1,fast,1,1\n", "line 2: sm_mhz 'fast' is not a number above 0"),
        (HEAD + "a,b,1,1410,1\n", "line 2: energy_j '' is not a number above 0"),
        (HEAD + "a,,1,1410,1,1\n", "line 2: a schedule needs a part and a slot"),
    ],
)
def test_what_is_no_table_is_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    path = tmp_path / "schedules.csv"
    path.write_text(text)
    assert called("partitions", path) == 2
    assert why in one_line(capsys)


def test_the_table_itself_is_never_overwritten(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg = table.rename(table.with_suffix(".svg"))
    assert called("partitions", svg, "--plot", svg) == 2
    assert "--plot" in one_line(capsys)
    assert svg.read_text() == HEAD + ROWS
