import json

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from joulewise.cli.look import Sight, bar, line, table
from joulewise.core.knob import DEFAULT
from joulewise.core.measurement import Measurement, Reading, Source, Throttle
from joulewise.device.gpu import GpuInfo

INFO = GpuInfo(uuid="GPU-3f2a91c0", name="NVIDIA H200", index=0, backend="nvml", memory_bytes=2**30)
FULL = Reading(
    time_s=1.0,
    power_w=412.3,
    average_power_w=400.0,
    power_limit_w=700.0,
    sm_mhz=1785.0,
    memory_mhz=3201.0,
    utilization=0.97,
    memory_utilization=0.3,
    temperature_c=61.0,
    memory_used_bytes=5,
    throttle=frozenset({Throttle.POWER_CAP}),
)
USED = Measurement(DEFAULT, 2.0, 820.0, 4.0, 0.03, Source.COUNTER)


def shown(*sights: Sight, width: int = 80) -> list[str]:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(table(sights, width=width))
    return captured.get().splitlines()


def test_a_row_says_power_clock_heat_and_why_the_clock_is_held():
    row = shown(Sight(INFO, FULL, USED))[1]
    assert " ".join(row.split()) == "0 H200 412 / 700 W 1785 MHz 97 % 61 °C power cap 820 J"


def test_a_wide_terminal_shows_more():
    head, row = shown(Sight(INFO, FULL, USED, (17, 42)), width=120)
    assert "memory" in head
    assert "3201 MHz" in row
    assert "17 42" in row
    assert "█" in row


def test_a_narrow_terminal_shows_less_but_whole_numbers():
    row = shown(Sight(INFO, FULL, USED), width=60)[1]
    assert " ".join(row.split()) == "0 H200 412 / 700 W 1785 MHz 97 % 820 J"
    row = shown(Sight(INFO, FULL, USED), width=40)[1]
    assert " ".join(row.split()) == "0 H200 412 / 700 W 820 J"


def test_what_was_not_read_is_a_dash_and_never_a_zero():
    row = shown(Sight(INFO, Reading(time_s=1.0)))[1]
    assert row.split() == ["0", "H200", *["–"] * 5]
    assert "0 W" not in row


def test_a_lost_gpu_keeps_its_row():
    assert "no reading" in shown(Sight(INFO, None, reason="it fell off the bus"))[1]
    assert "no reading: it fell off the bus" in line(Sight(INFO, None, reason="it fell off the bus")).plain


def test_json_has_units_in_its_keys_and_null_for_the_unknown():
    full = json.loads(json.dumps(Sight(INFO, FULL, USED, (17,), counter_j=9.0).as_json()))
    assert full["power_w"] == 412.3
    assert full["throttle"] == ["power cap"]
    assert full["energy_j"] == 820.0
    assert full["pids"] == [17]
    none = Sight(INFO, None, reason="lost").as_json()
    assert set(none) == set(full)
    known = {"uuid", "name", "index", "backend", "memory_bytes", "reason"}
    assert all(value is None for name, value in none.items() if name not in known)


@given(st.floats(-1, 2), st.integers(1, 30))
def test_a_bar_keeps_its_width(share, width):
    assert len(bar(share, width)) == width
    assert bar(1.0, width) == "█" * width
    assert bar(None, width).strip() == ""
