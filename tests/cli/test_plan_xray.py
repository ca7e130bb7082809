"""``joulewise plan xray``: traces become a table, a page, a picture and JSON; what is wrong with them one line."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from joulewise.cli import main
from joulewise.model import catalog
from tests.plan.traced_job import Truth, fsdp

H200 = catalog.load("h200")


@pytest.fixture(scope="module")
def traces(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("traces")
    truth = Truth(fsdp(1, H200, layers=3), H200, seed=0)
    paths = [folder / f"rank{rank}.json" for rank in range(2)]
    for rank, path in enumerate(paths):
        path.write_text(json.dumps(truth.kineto(rank=rank, seed=rank)))
    return paths


def called(*args: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, ("plan", "xray", *args))])
    return int(ended.value.code or 0)


def test_the_result_comes_first_within_80_columns_and_what_it_rests_on_last(traces, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert called(*traces, "--max-slowdown", "1%") == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    lines = shown.out.splitlines()
    assert lines[0].startswith("A plan could save ")
    assert max(map(len, lines)) <= 80
    assert "2 of 2 ranks, 2 steps" in shown.out
    assert "NVIDIA H200" in shown.out
    for words in ("one clock", "a clock a phase", "limit of all plans", "compute-bound", "standing still", "GPU 1"):
        assert words in shown.out
    assert lines[-1].startswith("assumed") or "assumed: Ranges hold" in shown.out
    assert "Believed, not measured" in shown.out
    assert "--sm-mhz and --power-w say better" in " ".join(lines)


def test_what_the_user_saw_is_not_called_believed(traces, capsys):
    assert called(traces[0], "--json", "--power-w", 600, "--sm-mhz", 1700, "--max-slowdown", "1%") == 0
    said = json.loads(capsys.readouterr().out)["assumptions"]
    assert "You saw 1700 MHz and 600 W a GPU; draws that do not agree with that count little." in said
    assert not any("Believed" in each for each in said)
    assert called(traces[0], "--json", "--power-w", 600, "--max-slowdown", "1%") == 0
    said = json.loads(capsys.readouterr().out)["assumptions"]
    assert any(each.startswith("Believed") and each.endswith("--sm-mhz says better.") for each in said)


def test_json_has_every_figure_and_the_assumptions(traces, capsys):
    assert called(traces[0], "--json", "--power-w", 600, "--seed", 3) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["gpu"] == {"key": "h200", "name": "NVIDIA H200"}
    assert [each["slowdown"] for each in said["savings"]] == [0.0] * 3 + [0.01] * 3 + [0.03] * 3
    assert {"middle", "low", "high"} == set(said["savings"][0]["saving"])
    assert said["power_w"]["middle"] == pytest.approx(600, rel=0.06)
    assert said["bars"]
    assert said["waits"]
    assert any("inferred" in each for each in said["assumptions"])
    assert any("not given" in each for each in said["assumptions"])


def test_a_page_and_a_picture_are_written(traces, tmp_path, capsys):
    page, picture = tmp_path / "x.html", tmp_path / "x.svg"
    assert called(*traces, "--report", page, "--plot", picture) == 0
    text = page.read_text()
    figures = text.split("<svg")[1:]
    assert len(figures) == 2
    for figure in figures:
        ET.fromstring("<svg" + figure.partition("</svg>")[0] + "</svg>")
    assert "<script" not in text
    assert "ncclDevKernel_AllGather_RING_LL" in text
    assert ET.parse(picture).getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["none.json"], "none.json cannot be read: no such file or directory"),
        (["{0}", "{0}"], "rank 0 is there more than once"),
        (["{0}", "--gpu", "z900"], "no GPU model is called 'z900'"),
        (["{0}", "--sm-mhz", "5000"], "5000 MHz is outside"),
        (["{0}", "--max-slowdown", "3"], "for 3 percent write 3%"),
        (["{0}", "--plot", "x.bmp"], "must end in .svg"),
        (["{0}", "--report", "x.txt"], "is to be a page"),
        (["{0}", "--report", "{0}"], "both name"),
        (["{0}", "--seed", "-1"], "--seed"),
        (["{0}", "--power-w", "nan"], "nan W is no mean power"),
    ],
)
def test_what_is_wrong_is_one_line(traces, capsys, args, says):
    assert called(*(each.format(*traces) for each in args)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert says in shown.err


def test_a_truncated_trace_is_said_to_be_one(traces, tmp_path, capsys):
    half = tmp_path / "half.json"
    half.write_text(traces[0].read_text()[:3000])
    page = tmp_path / "x.html"
    assert called(half, "--report", page) == 2
    assert "is truncated: it ends after" in capsys.readouterr().err
    assert not page.exists()
