from __future__ import annotations

import json
import logging
import math
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import BadRecording, BadSpec
from joulewise.core.measurement import EnergyReading, Reading, Throttle
from joulewise.device.recording import Recorder, load
from tests.device import recorded


def test_what_was_recorded_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    recorded.write(path)
    recording = load(path)
    assert recording.gpus == recorded.INFOS
    assert [len(series) for series in recording.readings] == [101, 101]
    assert [len(series) for series in recording.energies] == [11, 11]
    assert recording.readings[1][0] == Reading(
        1000.0,
        power_w=250.0,
        sm_mhz=1710,
        utilization=0.5,
        memory_used_bytes=2**30,
        throttle=frozenset({Throttle.POWER_CAP}),
    )
    assert recording.energies[0][3] == EnergyReading(1003.0, 5900.0, 0.0035)
    assert recording.windows == (("epoch", {"duration_s": 10.0, "energy_j": 3500.0}),)
    assert recording.start_s == 1000.0
    assert recording.complete


finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
readings = st.builds(
    Reading,
    time_s=st.just(1.0),
    power_w=st.none() | finite,
    average_power_w=st.none() | finite,
    power_limit_w=st.none() | finite,
    sm_mhz=st.none() | finite,
    memory_mhz=st.none() | finite,
    utilization=st.none() | finite,
    memory_utilization=st.none() | finite,
    temperature_c=st.none() | finite,
    memory_used_bytes=st.none() | st.integers(0, 2**40),
    throttle=st.none() | st.frozensets(st.sampled_from(Throttle)),
)


@given(series=st.lists(readings, max_size=5))
def test_any_reading_survives_the_round_trip(series: list[Reading], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("recording") / "run.jsonl"
    with Recorder(path, recorded.gpus()) as recorder:
        for reading in series:
            recorder.reading(0, reading)
    assert list(load(path).readings[0]) == series


def test_no_reading_is_left_out_and_never_zero(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Recorder(path, recorded.gpus()) as recorder:
        recorder.reading(0, Reading(1.0, power_w=math.nan))
        recorder.window("w", {"error_j": math.inf, "parts": [{"energy_j": math.nan}]})
    line = json.loads(path.read_text().splitlines()[1])
    assert line == {"gpu": 0, "time_s": 1.0}
    assert load(path).readings[0][0].power_w is None
    assert load(path).windows == (("w", {"error_j": None, "parts": [{"energy_j": None}]}),)


def test_a_killed_run_leaves_a_readable_recording(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    script = (
        "import sys; from pathlib import Path\n"
        "from joulewise.core.measurement import Reading\n"
        "from joulewise.device.recording import Recorder\n"
        "from tests.device import recorded\n"
        "recorder = Recorder(Path(sys.argv[1]), recorded.gpus())\n"
        "for i in range(10**9):\n"
        "    recorder.reading(0, Reading(float(i), power_w=300.0))\n"
        "    if i == 1000: print('going', flush=True)\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, env=environ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"going\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
    recording = load(path)
    assert len(recording.readings[0]) > 1000
    assert not recording.complete


def test_a_last_line_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    recorded.write(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:50]) + lines[50][:-5])
    recording = load(path)
    assert sum(map(len, recording.readings)) + sum(map(len, recording.energies)) == 49
    assert not recording.complete


@pytest.mark.parametrize(
    "fault",
    [
        b"not json\n",
        b"[1, 2]\n",
        b'{"gpu": 0}\n',
        b'{"gpu": 2, "time_s": 2000.0}\n',
        b'{"gpu": -1, "time_s": 2000.0}\n',
        b'{"gpu": 0, "time_s": 1.0}\n',  # goes back in time
        b'{"gpu": 0, "time_s": 2000.0, "power_w": NaN}\n',
        b'{"gpu": 0, "time_s": 2000.0, "power_w": "300"}\n',
        b'{"gpu": 0, "time_s": 2000.0, "power_w": true}\n',
        b'{"gpu": 0, "time_s": 2000.0, "throttle": ["boredom"]}\n',
        b'{"gpu": 0, "time_s": 2000.0, "energy_j": null}\n',
        b'{"gpu": 0, "time_s": 2000.0, "power_w": 1' + b"0" * 400 + b"}\n",
        b"[" * 100_000 + b"\n",
        b"\x00\x00\x00\x00\n",
        b"\xff\xfe\n",
        b"\n",
    ],
)
def test_a_corrupt_line_is_named_and_what_precedes_it_can_be_read(tmp_path: Path, fault: bytes) -> None:
    path = tmp_path / "run.jsonl"
    recorded.write(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:40]) + fault + b"".join(lines[40:]))
    with pytest.raises(BadRecording, match=r"line 41 of .*'head -n 40'") as caught:
        load(path)
    assert "\n" not in str(caught.value)
    kept = load(path, strict=False)
    assert sum(map(len, kept.readings)) + sum(map(len, kept.energies)) == 39


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    recorded.write(path)
    path.write_text(path.read_text().replace('"version":1', '"version":2', 1))
    with pytest.raises(BadRecording, match=r"version 2.*version 1"):
        load(path, strict=False)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\n",
        b"hello\n",
        b'{"joulewise": "plan"}\n',
        b'{"joulewise": "recording", "version": 1, "time_s": 0}\n',
        b'{"joulewise": "recording", "version": 1, "gpus": []}\n',
        b'{"joulewise": "recording", "version": 1, "time_s": 0, "gpus": [{"name": "x"}]}\n',
        b'{"joulewise": "recording", "version": 1, "time_s": 0, "gpus": [3]}\n',
        b'{"joulewise": "recording", "version": 1, "time_s": 0, "gpus": [{"uuid": "a", "name": "b", "index": 0}]}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_a_bad_header_is_an_error_in_one_line(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(header)
    with pytest.raises(BadRecording, match="line 1") as caught:
        load(path, strict=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sensors": {"power_update_s": 0}},
        {"sensors": {"power_update_s": "0.1"}},
        {"sensors": {"counter_update_s": -0.1}},
        {"sensors": {"gain_error": None}},
        {"space": {"sm_mhz": {"low": "slow", "high": 1980}}},
        {"idle_power_w": "much"},
        {"memory_bytes": []},
    ],
)
def test_a_gpu_that_makes_no_sense_is_an_error_in_one_line(tmp_path: Path, wrong: dict[str, object]) -> None:
    path = tmp_path / "run.jsonl"
    recorded.write(path)
    first, rest = path.read_text().split("\n", 1)
    header = json.loads(first)
    header["gpus"][0].update(wrong)
    path.write_text(json.dumps(header) + "\n" + rest)
    with pytest.raises(BadRecording, match=r"line 1 of .* describes a GPU badly"):
        load(path)


def test_unknown_keys_and_lines_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Recorder(path, recorded.gpus()):
        pass
    with path.open("a") as file:
        file.write('{"gpu":0,"time_s":1,"power_w":3.5,"smell":"burnt"}\n{"weather":"fine"}\n')
    assert load(path).readings[0] == (Reading(1.0, power_w=3.5),)


def test_a_missing_file_is_an_error_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadRecording, match="no such file or directory; make a recording with"):
        load(tmp_path / "absent.jsonl")
    with pytest.raises(BadRecording, match="directory"):
        load(tmp_path)


@pytest.mark.parametrize("place", ["absent/run.jsonl", ".", "/dev/full"])
def test_an_unwritable_path_is_an_error_before_anything_runs(tmp_path: Path, place: str) -> None:
    with pytest.raises(BadSpec, match="cannot record to"):
        Recorder(tmp_path / place, recorded.gpus())


def test_a_disk_that_fills_up_stops_the_recording_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "run.jsonl"
    recorder = Recorder(path, recorded.gpus())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 1000, hard))
    try:
        with caplog.at_level(logging.WARNING, logger="joulewise"):
            for tick in range(100):
                recorder.reading(0, Reading(float(tick), power_w=300.0))
            recorder.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert recorder.failed is not None
    assert "the run goes on" in recorder.failed
    assert len(caplog.records) == 1
    recording = load(path)
    assert 5 < len(recording.readings[0]) < 100
    assert path.read_bytes().endswith(b"\n")
    assert not recording.complete


def test_a_window_that_json_cannot_hold_stops_the_recording_not_the_run(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run.jsonl", recorded.gpus()) as recorder:
        recorder.window("epoch", {"seen": {1, 2}})
        assert recorder.failed is not None
        assert "not JSON serializable" in recorder.failed


def test_closing_twice_and_writing_after_the_end_do_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    recorder = Recorder(path, recorded.gpus())
    recorder.close(12.0)
    size = path.stat().st_size
    recorder.close()
    recorder.reading(0, Reading(1.0))
    assert path.stat().st_size == size
    assert recorder.failed is None
