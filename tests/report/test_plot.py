import sys
from pathlib import Path

import pytest

from joulewise.core.errors import BadSpec, MissingPart
from joulewise.core.measurement import Reading
from joulewise.report.history import Series
from joulewise.report.plot import check, draw

pytest.importorskip("matplotlib")


def series(count: int = 30) -> Series:
    filled = Series(width_s=0.1)
    for place in range(count):
        filled.add(Reading(time_s=50 + 0.1 * place, power_w=400.0 + place, sm_mhz=1700, power_limit_w=700))
    return filled


@pytest.mark.parametrize("name", ["power.svg", "power.png", "power.pdf"])
def test_every_format_is_written(tmp_path, name):
    path = tmp_path / name
    check(path)
    draw(path, [("H200", series())], title="1.2 kJ", subtitle="python train.py")
    starts = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}
    assert path.read_bytes().startswith(starts[path.suffix])


def test_a_picture_shows_the_title_the_limit_and_every_gpu(tmp_path):
    path = tmp_path / "power.svg"
    draw(path, [(f"GPU {n}", series()) for n in range(3)], title="1.2 kJ in 3 s")
    text = path.read_text()
    for words in ("1.2 kJ in 3 s", "limit 700 W", "GPU 0", "GPU 2", "SM clock (MHz)"):
        assert f"<!-- {words} -->" in text


def test_the_same_run_gives_the_same_file(tmp_path):
    for name in ("a.svg", "b.svg"):
        draw(tmp_path / name, [("H200", series())], title="t")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize("readings", [[], [Reading(time_s=1.0)], [Reading(time_s=1.0, power_w=70.0)]])
def test_a_run_with_next_to_no_readings_can_be_drawn(tmp_path, readings):
    few = Series()
    for reading in readings:
        few.add(reading)
    draw(tmp_path / "power.png", [("H200", few)], title="nothing")
    assert (tmp_path / "power.png").stat().st_size > 1000


def test_an_unknown_format_is_refused_before_anything_runs():
    with pytest.raises(BadSpec, match=r"\.svg"):
        check(Path("power.docx"))


def test_without_matplotlib_the_way_out_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPart, match=r"joulewise\[plot\]"):
        check(Path("power.svg"))
