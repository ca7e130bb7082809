"""Whatever bytes come over the socket: a typed error or a hang-up, never a crash, and nothing changes."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Iterator
from dataclasses import fields

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.control_stage import Talk, cpu_s, descriptors, memory_mib
from joulewise.core.errors import BadMessage, JoulewiseError, OutOfRange, Unsupported
from joulewise.core.knob import Setting
from joulewise.device import wire
from tests.daemon.house import House, house
from tests.daemon.running import until
from tests.tiers import examples

TYPED = {"BadMessage", "Unsupported", "OutOfRange", "NoGpu", "LeaseLost", "NotNow", "NotPermitted"}
"""What a stranger's nonsense may be answered with."""
OPS = (
    "hello",
    "gpus",
    "read",
    "energy",
    "take",
    "apply",
    "beat",
    "release",
    "quiet",
    "leases",
    "end",
    "stand",
    "status",
)
FIELDS = ("id", "op", "gpu", "gpus", "knobs", "ttl_s", "reason", "together", "lease", "setting", "for_s", "after",
          "uid", "pid", "__class__", "name", "size")  # fmt: skip

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
plausible = st.one_of(
    json_values,
    st.sampled_from(["GPU-aa", "sm_mhz", "power_limit_w", "lease-1", "../../etc/passwd", "\x00", "😀", "NaN"]),
    st.lists(st.sampled_from(["GPU-aa", "GPU-bb", "sm_mhz", "power_limit_w", "fan"]), max_size=3),
    st.dictionaries(st.sampled_from(["sm_mhz", "power_limit_w", "fan", "name", "size"]), json_values, max_size=3),
    st.sampled_from([0, -1, 1e308, 2**53, 2**53 + 1, 1200, 400.5]),
)
messages = st.fixed_dictionaries(
    {"id": st.integers(0, 9) | json_values, "op": st.sampled_from(OPS) | json_values},
    optional=dict.fromkeys(FIELDS[2:], plausible),
)
lines = messages.map(lambda message: json.dumps(message).encode())


@st.composite
def mangled(draw: st.DrawFn) -> bytes:
    """A message with bytes put in, taken out, doubled or changed."""
    line = bytearray(draw(lines))
    for _ in range(draw(st.integers(1, 5))):
        place = draw(st.integers(0, max(0, len(line) - 1)))
        match draw(st.sampled_from(["put", "cut", "double", "change", "junk"])):
            case "put":
                line[place:place] = draw(
                    st.sampled_from([b"{", b"[", b'"', b"}", b",", b"\\", b"\x00", b"NaN", b"1e999"])
                )
            case "cut":
                del line[place : place + draw(st.integers(1, 8))]
            case "double":
                line[place:place] = line[place : place + 16]
            case "change" if line:
                line[place] = draw(st.integers(0, 255))
            case "junk":
                line[place:place] = draw(st.binary(max_size=8))
    return bytes(line)


def understood(line: bytes) -> wire.Request | None:
    """What the parser makes of it. It may refuse in three ways and no other."""
    began_s = time.process_time()
    number = None
    try:
        obj = wire.parse_asked(line)
        number = wire.request_id(obj)
        request = wire.to_request(obj)
    except (BadMessage, Unsupported, OutOfRange) as error:
        said = json.loads(wire.error_line(number, error))
        assert said["error"] in TYPED
        assert "\n" not in said["message"]
        assert len(said["message"]) <= 1024
        request = None
    # 64 KiB may take a millisecond or so; a tenth of a second would let one client stop all others.
    assert time.process_time() - began_s < 0.1
    return request


def sane(request: wire.Request) -> None:
    """What was understood holds nothing that a later reader would have to fear."""
    assert type(request.id) is int
    assert request.id >= 0
    for field in fields(request):
        value = getattr(request, field.name)
        if isinstance(value, float):
            assert abs(value) < float("inf")
        if isinstance(value, str):
            assert value.isprintable()
            assert len(value) <= wire.MOST_TEXT
        if isinstance(value, Setting):
            assert all(0 < number < float("inf") for number in value.values())


@pytest.mark.sampled
@settings(max_examples=examples(1000), deadline=None)
@given(st.binary(max_size=300) | lines | mangled())
def test_the_parser_refuses_or_understands_and_does_nothing_else(line):
    request = understood(line)
    if request is not None:
        sane(request)


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 65536,
        b'{"id":' * 10000,
        b'"' + b"\\" * 65000,
        b'{"id":' + b"9" * 65000 + b"}",
        b'{"id":1e' + b"9" * 65000 + b"}",
        b"{" + b",".join(b'"%x":0' % n for n in range(7000)) + b',"1b57":0}',
        b'{"id":1,"op":"take","gpus":[' + b'"GPU-aa",' * 7000 + b'"x"]}',
        b'{"id":1,"op":"take","knobs":[' + b'"sm_mhz",' * 7000 + b'"sm_mhz"]}',
        b'{"id":1,"op":"take","reason":"' + b"\\ud83d" * 10000 + b'"}',
        b'{"id":1,"op":"' + b"\xff" * 60000 + b'"}',
        b"\x00" * 65536,
        b" " * 65535,
        b"\xef\xbb\xbf{}",
        b"",
    ],
    ids=lambda line: f"{line[:12]!r}*{len(line)}",
)
def test_lines_made_to_cost_are_refused_quickly(line):
    assert understood(line) is None


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b'{"id":1,"op":"apply","lease":"x","setting":{"sm_mhz":1200,"sm_mhz":345}}', "BadMessage"),
        (b'{"id":1,"id":2,"op":"hello"}', "BadMessage"),
        (b'{"id":1,"op":"apply","lease":"x","setting":{"power_limit_w":NaN}}', "BadMessage"),
        (b'{"id":1,"op":"apply","lease":"x","setting":{"power_limit_w":-Infinity}}', "BadMessage"),
        (b'{"id":1,"op":"apply","lease":"x","setting":{"power_limit_w":1e999}}', "BadMessage"),
        (b'{"id":1,"op":"apply","lease":"x","setting":{"power_limit_w":-5}}', "OutOfRange"),
        (b'{"id":1,"op":"apply","lease":"x","setting":{"power_limit_w":0}}', "OutOfRange"),
        (b'{"id":1,"op":"apply","lease":"x","setting":{"power_limit_w":true}}', "BadMessage"),
        (b'{"id":1,"op":"apply","lease":"x","setting":{"power_limit_w":"300"}}', "BadMessage"),
        (b'{"id":1,"op":"apply","lease":"x","setting":{"fan":1}}', "Unsupported"),
        (b'{"id":1,"op":"hello","uid":0}', "BadMessage"),
        (b'{"id":1,"op":"take","gpus":["GPU-aa"],"knobs":["sm_mhz"],"ttl_s":1,"pid":1}', "BadMessage"),
        (b'{"id":9007199254740993,"op":"hello"}', "BadMessage"),
        (b'{"id":1,"op":"read","gpu":"../../etc/passwd"}', "BadMessage"),
        (b'{"id":1,"op":"sudo"}', "BadMessage"),
        (b'{"op":"hello"}', "BadMessage"),
    ],
)
def test_what_looks_right_but_is_not_is_refused_by_its_name(line, kind):
    with pytest.raises(JoulewiseError) as refused:
        wire.parse_request(line)
    assert type(refused.value).__name__ == kind


# ---- the live daemon ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def inside() -> Iterator[House]:
    with house() as shared:
        yield shared


def exchange(inside: House, chunks: list[bytes]) -> list[dict[str, object]]:
    """Send the chunks one by one, close our half, and read until the daemon has closed its."""
    heard = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        raw.settimeout(10.0)
        raw.connect(str(inside.daemon.socket))
        try:
            for chunk in chunks:
                raw.sendall(chunk)
            raw.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass
        try:
            while received := raw.recv(1 << 16):
                heard += received
        except ConnectionResetError:
            pass
    return [json.loads(line) for line in heard.splitlines()]


def check_untouched(inside: House, before: list[object]) -> None:
    assert inside.all_hardware() == before
    assert inside.leases() == []


@pytest.mark.sampled
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=200) | lines.map(lambda line: line + b"\n") | mangled(), max_size=6), st.randoms())
def test_nonsense_in_any_pieces_changes_nothing(inside, pieces, seeded):
    before = inside.all_hardware()
    data = b"".join(pieces)
    cuts = sorted(seeded.randrange(len(data) + 1) for _ in range(seeded.randrange(4)))
    chunks = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    for answer in exchange(inside, chunks):
        # We are root here, so that nonsense which happens to be sense is not refused for want of rights.
        assert "ok" in answer or answer["error"] in TYPED, answer
    until(lambda: inside.leases() == [], 5.0)
    assert inside.all_hardware() == before


@pytest.mark.parametrize("size", [wire.MOST_BYTES - 1, wire.MOST_BYTES, wire.MOST_BYTES + 1, 10 * wire.MOST_BYTES])
def test_a_line_that_is_too_long_is_told_and_hung_up_on(inside, size):
    before = inside.all_hardware()
    head = b'{"id":1,"op":"hello","after":"'
    line = head + b"x" * (size - len(head) - 3) + b'"}\n'
    assert len(line) == size
    answers = exchange(inside, [line])
    assert [answer["error"] for answer in answers] == ["BadMessage"] or (size > wire.MOST_BYTES and answers == [])
    check_untouched(inside, before)


def test_a_line_without_an_end_is_hung_up_on_after_a_while(inside):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        raw.settimeout(15.0)
        raw.connect(str(inside.daemon.socket))
        raw.sendall(b'{"id":1,"op":')
        began_s = time.monotonic()
        assert json.loads(raw.recv(1 << 16))["error"] == "BadMessage"
        assert raw.recv(1) == b""
        assert time.monotonic() - began_s < 10.0


def test_a_flood_of_nonsense_leaves_memory_descriptors_and_others_as_they_were(inside, capsys):
    before, pid = inside.all_hardware(), inside.daemon.pid
    rng = random.Random(3)
    with Talk(inside.daemon.socket) as honest:
        honest("hello")
        flood(inside, rng, 50)  # what is loaded or grown once
        memory_before_mib, open_before = memory_mib(pid), descriptors(pid)
        began_s, began_cpu_s, slowest_s = time.monotonic(), cpu_s(pid), 0.0
        sent = 0
        for _ in range(10):
            sent += flood(inside, rng, 40)
            asked_s = time.monotonic()
            honest("hello")
            slowest_s = max(slowest_s, time.monotonic() - asked_s)
        lasted_s, used_s = time.monotonic() - began_s, cpu_s(pid) - began_cpu_s
        until(lambda: descriptors(pid) <= open_before, 5.0)
        grown_mib = memory_mib(pid) - memory_before_mib
    with capsys.disabled():
        print(
            f"\nfuzz: {sent / 2**20:.1f} MiB of nonsense in {lasted_s:.1f} s cost the daemon {used_s:.2f} s "
            f"of processor and {grown_mib:+.1f} MiB; an honest client waited at most {1e3 * slowest_s:.1f} ms"
        )
    assert grown_mib < 16
    assert slowest_s < 5.0
    check_untouched(inside, before)


def flood(inside: House, rng: random.Random, count: int) -> int:
    """Nonsense over ``count`` connections; how many bytes."""
    sent = 0
    for _ in range(count):
        kind = rng.randrange(5)
        if kind == 0:
            data = rng.randbytes(rng.randrange(1, 60000))
        elif kind == 1:
            data = b"[" * rng.randrange(1, 65000) + b"\n"
        elif kind == 2:
            data = (b"{" + b",".join(b'"%x":0' % n for n in range(6000)) + b',"1":0}\n') * 2
        elif kind == 3:
            data = b'{"id":1,"op":"leases"}\n' * 300
        else:
            data = b"\n" * rng.randrange(1, 3000) + b"\x00" * rng.randrange(1, 3000)
        exchange(inside, [data])
        sent += len(data)
    return sent
