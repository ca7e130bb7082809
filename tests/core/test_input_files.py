"""Files that a user names: within the limit they are read, and beyond it nothing is taken from memory."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from joulewise.core import input_files
from joulewise.core.errors import BadSpec
from tests.tiers import sample

MIB = 1 << 20
BOMB = MIB * 1500
"""Bytes in a file of 1.5 MB."""
MEMORY = 700 * MIB
"""Of address space for a process that reads one: numpy and its threads take half of it before anything is read."""


@pytest.fixture(params=["plain", "packed"])
def file(request, tmp_path):
    path = tmp_path / "file"
    text = b"one\ntwo\n" * 1000
    path.write_bytes(gzip.compress(text) if request.param == "packed" else text)
    return path


def test_a_file_is_read_as_it_is_whether_compressed_or_not(file):
    with input_files.opened(file, 8000) as content:
        assert content.read() == b"one\ntwo\n" * 1000
    with input_files.opened_text(file, 8000) as lines:
        assert list(lines) == ["one\n", "two\n"] * 1000


def test_beyond_the_limit_it_is_one_line_with_value_limit_and_way_out(file, monkeypatch):
    with pytest.raises(BadSpec) as refused, input_files.opened(file, 7999) as content:
        content.read()
    assert str(refused.value) == (
        f"{file} holds more than 0 MiB (decompressed, if it is compressed); "
        "set JOULEWISE_MAX_INPUT_MIB to a larger number of MiB if that is right"
    )
    monkeypatch.setenv("JOULEWISE_MAX_INPUT_MIB", "1")
    with input_files.opened(file, 7999) as content:
        assert len(content.read()) == 8000


@pytest.mark.parametrize("said", ["0", "-1", "1.5", "much", "9" * 5000])
def test_a_limit_that_is_none_is_refused(said, monkeypatch, tmp_path):
    monkeypatch.setenv("JOULEWISE_MAX_INPUT_MIB", said)
    with pytest.raises(BadSpec, match="takes a number of MiB"):
        input_files.read_bytes(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "middle"])
def test_damaged_gzip_is_said_to_be_so(tmp_path, damage):
    path = tmp_path / "a.gz"
    data = bytearray(gzip.compress(os.urandom(5000)))
    data[3000] ^= 255
    path.write_bytes(data[:2000] if damage == "cut" else data)
    with pytest.raises(BadSpec, match="gzip data are truncated or damaged"), input_files.opened(path) as content:
        content.read()


def test_a_device_that_never_ends_is_too_long():
    with pytest.raises(BadSpec, match="holds more than 1 MiB"):
        input_files.read_text(Path("/dev/zero"), MIB)


def test_what_is_no_text_is_said_to_be_none(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadSpec, match="is not text in UTF-8; do this"):
        input_files.read_text(path, way_out="do this")
    with pytest.raises(BadSpec, match="is not text in UTF-8"), input_files.opened_text(path) as text:
        text.read()


def packed(path: Path, begin: bytes, filler: bytes) -> Path:
    """A small file that is ``begin`` and gigabytes of ``filler`` when it is decompressed: gzip's pieces may follow each
    other, so that the same compressed one stands there many times."""
    piece = filler * (MIB // len(filler))
    path.write_bytes(gzip.compress(begin) + gzip.compress(piece, 9) * (BOMB // len(piece)))
    return path


XRAY, SIMULATE = "plan xray", "cluster simulate --gpu sim:a100*2"
JOBS = b"submitted_s,gpus,duration_s"
BOMBS = {
    "spaces behind the events": (XRAY, b'{"traceEvents": []', b" ", ""),
    "spaces before the events": (XRAY, b"{", b" ", ""),
    "a text behind the events": (XRAY, b'{"traceEvents": [], "a": "', b"a", ""),
    "one event without an end": (XRAY, b'{"traceEvents": [{"name": "', b"a", ""),
    "the shortest kernels": (XRAY, b'{"traceEvents": [', b'{"ph":"X","cat":"kernel","ts":1,"name":""},', "16"),
    "spaces between the events": (XRAY, b'{"traceEvents": [', b" ", "16"),
    "the shortest jobs": (SIMULATE, JOBS + b"\n", b"0,1,1\n", "16"),
    "one line without an end": (SIMULATE, JOBS + b"\n", b"0", ""),
    "many columns": (SIMULATE, JOBS + b",a" * 60_000 + b"\n0,1,1", b",", ""),
    "empty lines": (SIMULATE, JOBS, b"\n", "16"),
}
"""Verb, how the file begins, how it goes on, and the limit where the usual one would take the test too long."""


@pytest.mark.sampled
def test_a_small_file_that_holds_gigabytes_is_one_line_within_bounded_memory(tmp_path, scenario):
    shown = scenario("R34", "1.5 MB of gzip that holds 1.5 GB", criterion=f"one line, {MEMORY // MIB} MiB suffice")
    most_mib = 0
    bombs = sample(list(BOMBS.items()), 3, of="files that hold gigabytes")
    for name, (verb, begin, filler, limit) in bombs:
        path = packed(tmp_path / "bomb.csv.gz", begin, filler)
        assert path.stat().st_size < 8 * MIB, name
        done = subprocess.run(
            [sys.executable, "-m", "tests.core.within", str(MEMORY), *verb.split(), str(path)],
            capture_output=True,
            text=True,
            env={**os.environ, "JOULEWISE_MAX_INPUT_MIB": limit, "OPENBLAS_NUM_THREADS": "1"},
            check=False,
        )
        *said, figures = done.stderr.splitlines()
        assert (done.returncode, len(said), done.stdout) == (2, 1, ""), (name, done)
        assert str(path) in said[0], name
        most_mib = max(most_mib, json.loads(figures)["max_kib"] // 1024)
    assert most_mib <= MEMORY // MIB
    shown.saw(f"{len(bombs)} files, {most_mib} MiB at most")
