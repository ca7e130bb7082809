import json
from dataclasses import replace

import pytest
from rich.console import Console

from joulewise.cli.summary import Result, SetResult, as_json, ending, headline, show
from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.measurement import Measurement, Outcome, Reading, Source
from joulewise.device.gpu import GpuInfo
from joulewise.device.lease import Ending, Restored
from joulewise.report.history import Series
from joulewise.report.meter import GpuResult, HostResult


def gpu(index: int, *, name: str = "NVIDIA H200", notes: tuple[str, ...] = (), reason: str | None = None) -> GpuResult:
    series = Series(width_s=0.1)
    for place in range(100):
        series.add(Reading(time_s=0.1 * place, power_w=100.0 if place < 20 else 650.0, power_limit_w=700.0))
    measured = Measurement(DEFAULT, 10.0, 5400.0, 40.0, 0.03, Source.COUNTER, notes=notes)
    info = GpuInfo(uuid=f"GPU-{index:08x}-1111-2222", name=name, index=index, backend="nvml")
    return GpuResult(info, series, None if reason else measured, reason)


def result(
    *gpus: GpuResult, exit_code: int = 0, host: HostResult | None = None, held: SetResult | None = None
) -> Result:
    host = host or HostResult(None, "no RAPL here")
    return Result(("python", "train.py"), exit_code, "2026-01-01T00:00:00+00:00", 10.0, gpus, host, held)


def text(shown: Result, width: int = 80) -> list[str]:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        show(shown, console)
    return captured.get().splitlines()


def test_the_result_comes_first_then_how_it_is_known():
    lines = text(result(gpu(0)))
    assert lines[0] == "joulewise: 5.400 ± 0.040 kJ in 10.0 s, 540 W on average  NVIDIA H200"
    assert lines[1].endswith("100 to 650 W")
    assert lines[2] == "  energy counter; ± one standard error, besides ± 3.0 % of the sensor"
    assert len(lines) == 3


def test_several_gpus_have_a_row_each_and_their_sum_on_top():
    lines = text(result(gpu(0), gpu(1), gpu(2)))
    assert lines[0].startswith("joulewise: 16.200 ± 0.069 kJ in 10.0 s, 1,620 W on average  3 × NVIDIA H200")
    assert [line.split()[:2] for line in lines[2:5]] == [[str(n), f"GPU-{n:08x}"] for n in range(3)]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("count", [1, 4])
def test_nothing_is_wider_than_the_terminal(width, count):
    lines = text(result(*(gpu(n) for n in range(count)), exit_code=1, host=HostResult(900.0)), width)
    assert max(map(len, lines)) <= width


def test_gpus_of_several_kinds_are_told_apart_by_name():
    lines = text(result(gpu(0), gpu(1, name="NVIDIA A100-SXM4-80GB")))
    assert any(line.startswith("  1 A100-SXM4-80GB") for line in lines)


def test_what_a_reader_should_know_is_said_per_gpu():
    lines = text(result(gpu(0), gpu(1, notes=("counter reset",)), gpu(2, reason="lost after 3 s"), exit_code=137))
    assert "  GPU-00000001: counter reset" in lines
    assert "  GPU-00000002: lost after 3 s" in lines
    assert lines[-1] == "  python ended with signal SIGKILL (exit code 137)"


def test_a_host_without_a_gpu_is_a_result_too():
    host_only = result(host=HostResult(1500.0))
    assert headline(host_only) == "1.500 kJ in 10.0 s, 150 W (host only)"
    assert text(host_only)[0] == "joulewise: 1.500 kJ in 10.0 s, 150 W (host only)"


def test_nothing_measured_is_said_and_never_zero():
    nothing = result(gpu(0, reason="lost at once"))
    assert headline(nothing) == "no energy was measured in 10.0 s"
    written = as_json(nothing)
    assert written["energy_j"] is None
    assert written["gpus"][0]["energy_j"] is None
    assert written["gpus"][0]["reason"] == "lost at once"
    assert written["host"] == {"energy_j": None, "reason": "no RAPL here"}


def test_json_has_the_total_every_gpu_and_units_in_its_keys():
    written = json.loads(json.dumps(as_json(result(gpu(0), gpu(1), host=HostResult(900.0)))))
    assert written["energy_j"] == 10800.0
    assert written["duration_s"] == 10.0
    assert written["power_w"] == 1080.0
    assert written["source"] == "counter"
    assert written["outcome"] == Outcome.REACHED.value
    assert written["command"] == ["python", "train.py"]
    assert written["host"]["energy_j"] == 900.0
    assert [part["uuid"] for part in written["gpus"]] == [gpu(0).info.uuid, gpu(1).info.uuid]
    assert written["gpus"][0]["peak_power_w"] == 650.0
    same = ("energy_j", "error_j", "gain_error", "total_error_j", "power_w", "source", "outcome", "notes", "reason")
    assert all(name in written and name in written["gpus"][0] for name in same)


def test_endings_are_said_in_words():
    assert ending(3) == "exit code 3"
    assert ending(143) == "signal SIGTERM (exit code 143)"
    assert ending(255) == "exit code 255"


def held(*endings: Ending, notes: tuple[str, ...] = ()) -> SetResult:
    uuids = [f"GPU-{index:08x}-1111-2222" for index, _ in enumerate(endings)]
    restored = tuple(
        Restored(uuid, "power_limit_w", ending, 700.0, 300.0, 250.0 if ending is Ending.FOREIGN else 700.0)
        for uuid, ending in zip(uuids, endings, strict=True)
    )
    return SetResult(Setting(power_limit_w=300), dict.fromkeys(uuids, Setting(power_limit_w=300)), restored, notes)


def test_what_was_set_and_what_came_back_is_said():
    lines = text(result(gpu(0), held=held(Ending.RESTORED)))
    assert lines[-1] == "  power limit 300 W, restored to 700 W"
    lines = text(result(gpu(0), gpu(1), held=held(Ending.RESTORED, Ending.RESTORED)))
    assert lines[-1] == "  2 GPUs: power limit 300 W, restored to 700 W"


def test_what_did_not_come_back_and_what_happened_meanwhile_is_a_warning():
    lines = text(result(gpu(0), gpu(1), held=held(Ending.RESTORED, Ending.FOREIGN, notes=("persistence is off",))))
    assert lines[-3:] == [
        "  GPU-00000000: power limit 300 W, restored to 700 W",
        "  GPU-00000001: power limit 300 W, left at 250 W, which someone else had set meanwhile",
        "  persistence is off",
    ]


def test_a_lease_of_which_no_end_is_known_does_not_pass_in_silence():
    unknown = SetResult(Setting(sm_mhz=1200), {"GPU-1": Setting(sm_mhz=1200)}, ())
    assert text(result(gpu(0), held=unknown))[-1].startswith("  SM clock at most 1200 MHz, whether it came back is")


def test_what_was_set_is_in_the_json():
    assert as_json(result(gpu(0)))["set"] is None
    written = json.loads(json.dumps(as_json(result(gpu(0), held=held(Ending.RESTORED, notes=("a note",))))))["set"]
    assert written == {
        "requested": {"power_limit_w": 300},
        "effective": {"GPU-00000000-1111-2222": {"power_limit_w": 300}},
        "restored": [
            {
                "gpu": "GPU-00000000-1111-2222",
                "knob": "power_limit_w",
                "ending": "restored",
                "before": 700.0,
                "wrote": 300.0,
                "after": 700.0,
                "why": "",
            }
        ],
        "notes": ["a note"],
        "held_s": None,
        "ended_early": None,
    }


def test_a_setting_that_was_lost_on_the_way_says_for_how_long_it_was_there():
    lost = replace(held(Ending.RESTORED), held_s=3.04, ended_early="an administrator ended it: tea; take a new one")
    lines = text(result(gpu(0), held=lost))
    assert lines[-1] == (
        "  power limit 300 W: in force for the first 3.0 of 10.0 s only, an administrator ended it: tea"
    )
    written = as_json(result(gpu(0), held=lost))["set"]
    assert (written["held_s"], written["ended_early"]) == (3.04, "an administrator ended it: tea; take a new one")
