"""The messages between the daemon and its clients: what is understood, what is refused, and that nothing is lost."""

from __future__ import annotations

import json
import math
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core import errors
from joulewise.core.errors import BadMessage, JoulewiseError, NotNow, OutOfRange, Unsupported
from joulewise.core.knob import KNOBS, Choices, Setting, Space
from joulewise.core.measurement import EnergyReading, Reading, Throttle
from joulewise.core.visible import visible
from joulewise.device import wire
from joulewise.device.lease import Ending, Notice, Restored
from joulewise.device.wire_values import (
    from_energy,
    from_notice,
    from_reading,
    from_restored,
    from_space,
    to_energy,
    to_notice,
    to_reading,
    to_restored,
    to_space,
)

TAKE = {"id": 1, "op": "take", "gpus": ["GPU-1"], "knobs": ["sm_mhz"], "ttl_s": 30}
APPLY = {"id": 2, "op": "apply", "lease": "lease-1", "setting": {"power_limit_w": 300}}

finite = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(min_value=1e-3, max_value=1e6)
names = st.text(string.ascii_letters + string.digits, min_size=1, max_size=40)


def said(**fields: object) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def test_the_socket_is_where_the_environment_says_or_at_the_usual_place():
    assert wire.socket_path({}) == wire.SOCKET
    assert wire.socket_path({"JOULEWISE_SOCKET": ""}) == wire.SOCKET
    assert wire.socket_path({"JOULEWISE_SOCKET": "/there/s"}) == Path("/there/s")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"op": "hello"}, wire.Hello(7)),
        ({"op": "gpus"}, wire.Gpus(7)),
        ({"op": "gpus", "after": "GPU-1"}, wire.Gpus(7, "GPU-1")),
        ({"op": "read", "gpu": "GPU-1"}, wire.Read(7, "GPU-1")),
        ({"op": "energy", "gpu": "GPU-1"}, wire.Energy(7, "GPU-1")),
        (
            {"op": "take", "gpus": ["GPU-1", "GPU-2"], "knobs": ["sm_mhz"], "ttl_s": 30, "reason": "why"},
            wire.Take(7, ("GPU-1", "GPU-2"), frozenset({"sm_mhz"}), 30.0, "why"),
        ),
        (
            {"op": "take", "gpus": ["G"], "knobs": ["sm_mhz"], "ttl_s": 1, "together": {"name": "job.7", "size": 8}},
            wire.Take(7, ("G",), frozenset({"sm_mhz"}), 1.0, "", wire.Together("job.7", 8)),
        ),
        ({"op": "apply", "lease": "L", "setting": {}}, wire.Apply(7, "L", Setting())),
        (
            {"op": "apply", "lease": "L", "setting": {"sm_mhz": 900.5}, "gpus": ["GPU-1"]},
            wire.Apply(7, "L", Setting(sm_mhz=900.5), ("GPU-1",)),
        ),
        ({"op": "beat", "lease": "L"}, wire.Beat(7, "L")),
        ({"op": "release", "lease": "L"}, wire.Release(7, "L")),
        ({"op": "quiet", "gpus": ["G"], "for_s": 0}, wire.Quiet(7, ("G",), 0.0)),
        ({"op": "leases"}, wire.Leases(7)),
        ({"op": "end", "lease": "L", "reason": "late"}, wire.End(7, "L", "late")),
        ({"op": "stand", "gpus": ["G"], "setting": {"sm_mhz": None}}, wire.Stand(7, ("G",), {"sm_mhz": None})),
        ({"op": "status"}, wire.Status(7)),
    ],
)
def test_every_op_is_understood(fields: dict[str, object], expected: wire.Request):
    assert wire.parse_request(said(id=7, **fields)) == expected


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"{}",
        b"null",
        b"[1]",
        b'"hello"',
        b"{",
        b'{"id": 1, "op": "hello"} x',
        b'{"id": 1, "op": "hello"}{"id": 2, "op": "hello"}',
        b'{"op": "hello"}',
        b'{"id": true, "op": "hello"}',
        b'{"id": 1.0, "op": "hello"}',
        b'{"id": -1, "op": "hello"}',
        b'{"id": "1", "op": "hello"}',
        b'{"id": 1}',
        b'{"id": 1, "op": 7}',
        b'{"id": 1, "op": ["hello"]}',
        b'{"id": 1, "op": "shutdown"}',
        b'{"id": 1, "op": "hello", "uid": 0}',
        b'{"id": 1, "op": "hello", "op": "status"}',
        b'{"id": 1, "op": "beat"}',
        b'{"id": 1, "op": "beat", "lease": null}',
        b'{"id": 1, "op": "beat", "lease": "../../etc/passwd"}',
        b'{"id": 1, "op": "beat", "lease": ""}',
        b'{"id": 1, "op": "read", "gpu": ["GPU-1"]}',
        b'{"id": 1, "op": "read", "gpu": "GPU-1\\u0000"}',
        b'{"id": 1, "op": "hello"\xff}',
        b'\xef\xbb\xbf{"id": 1, "op": "hello"}',
        b'{"id": 9007199254740993, "op": "hello"}',
        b'{"id": ' + b"9" * 5000 + b', "op": "hello"}',
        b"[" * 60_000,
        b'{"a":' * 10_000,
        b'{"id": 1, "op": "hello", "x": [[[[[[[[[[1]]]]]]]]]]}',
        b'"' * 60_000 + b"[" * 9,
    ],
)
def test_what_breaks_the_protocol_is_refused_in_one_line(line: bytes):
    with pytest.raises(BadMessage) as caught:
        wire.parse_request(line)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"gpus": []}, BadMessage),
        ({"gpus": "GPU-1"}, BadMessage),
        ({"gpus": ["GPU-1", "GPU-1"]}, BadMessage),
        ({"gpus": ["G"] * 257}, BadMessage),
        ({"gpus": [7]}, BadMessage),
        ({"knobs": []}, BadMessage),
        ({"knobs": ["sm_mhz", "sm_mhz"]}, BadMessage),
        ({"knobs": {"sm_mhz": 1}}, BadMessage),
        ({"knobs": ["fan"]}, Unsupported),
        ({"knobs": [None]}, Unsupported),
        ({"ttl_s": 0}, OutOfRange),
        ({"ttl_s": -1}, OutOfRange),
        ({"ttl_s": "30"}, BadMessage),
        ({"ttl_s": True}, BadMessage),
        ({"ttl_s": None}, BadMessage),
        ({"reason": "x" * 257}, BadMessage),
        ({"reason": "two\nlines"}, BadMessage),
        ({"reason": "\x1b[2J"}, BadMessage),
        ({"reason": "\ud800"}, BadMessage),
        ({"reason": 7}, BadMessage),
        ({"together": {"name": "job"}}, BadMessage),
        ({"together": {"name": "job", "size": 2, "uid": 0}}, BadMessage),
        ({"together": {"name": "job", "size": 0}}, OutOfRange),
        ({"together": {"name": "job", "size": 1.5}}, OutOfRange),
        ({"together": {"name": "a b", "size": 2}}, BadMessage),
        ({"pid": 1}, BadMessage),
    ],
)
def test_a_take_with_a_bad_field_is_refused(change: dict[str, object], kind: type[JoulewiseError]):
    with pytest.raises(kind):
        wire.parse_request(said(**{**TAKE, **change}))


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        ("NaN", BadMessage),
        ("Infinity", BadMessage),
        ("-Infinity", BadMessage),
        ("1e999", BadMessage),
        ("-1e999", BadMessage),
        ("0", OutOfRange),
        ("-300", OutOfRange),
        ("-0.0", OutOfRange),
        ('"300"', BadMessage),
        ("null", BadMessage),
        ("true", BadMessage),
        ("[300]", BadMessage),
        ("99999999999999999999", BadMessage),
    ],
)
def test_a_value_that_can_never_be_right_is_refused(number: str, kind: type[JoulewiseError]):
    line = f'{{"id": 2, "op": "apply", "lease": "L", "setting": {{"power_limit_w": {number}}}}}'
    with pytest.raises(kind):
        wire.parse_request(line.encode())


def test_a_key_that_occurs_twice_is_refused_however_deep():
    line = b'{"id": 2, "op": "apply", "lease": "L", "setting": {"sm_mhz": 900, "sm_mhz": 1980}}'
    with pytest.raises(BadMessage, match="twice"):
        wire.parse_request(line)


def test_a_line_may_have_65536_bytes_and_not_one_more():
    filled = b'{"id": 1, "op": "hello"' + b" " * (wire.MOST_BYTES - 25) + b"}\n"
    assert len(filled) == wire.MOST_BYTES
    assert wire.parse_request(filled) == wire.Hello(1)
    with pytest.raises(BadMessage, match="65536"):
        wire.parse_request(b" " + filled)


def test_brackets_inside_of_text_are_no_depth():
    reason = "[{" * 100
    request = wire.parse_request(said(**{**TAKE, "reason": reason}))
    assert isinstance(request, wire.Take)
    assert request.reason == reason


def test_negative_integers_stay_negative():
    assert wire.parse_object(b'{"x": -5}') == {"x": -5}


def test_the_largest_request_is_read_and_one_that_is_none_is_not():
    gpus = [f"GPU-{number:036d}" for number in range(wire.MOST_GPUS)]
    request = wire.parse_request(
        said(id=1, op="take", gpus=gpus, knobs=["sm_mhz"], ttl_s=5, reason="," * wire.MOST_TEXT)
    )
    assert isinstance(request, wire.Take)
    assert len(request.gpus) == wire.MOST_GPUS
    with pytest.raises(BadMessage, match="commas"):
        wire.parse_request(said(id=1, op="x", a=[1] * 30_000))


def test_the_id_of_a_bad_request_is_found_where_it_can_be():
    assert wire.request_id({"id": 5, "op": "nonsense"}) == 5
    for number in ("5", -5, 5.0, True, None):
        assert wire.request_id({"id": number, "op": "hello"}) is None
    assert wire.request_id({}) is None


@given(st.sampled_from(sorted(name for name in dir(errors) if isinstance(getattr(errors, name), type))), st.text())
def test_an_error_arrives_as_the_class_that_it_was(name: str, message: str):
    kind = getattr(errors, name)
    line = wire.error_line(3, kind(message))
    assert line.count(b"\n") == 1
    assert len(line) <= wire.MOST_BYTES
    obj = wire.parse_object(line)
    assert obj["id"] == 3
    with pytest.raises(kind) as caught:
        wire.raise_error(obj)
    assert type(caught.value) is kind
    assert str(caught.value) == visible(visible(message)[:1024])


def test_not_now_says_when():
    with pytest.raises(NotNow) as caught:
        wire.raise_error(wire.parse_object(wire.error_line(1, NotNow("later", retry_s=0.25))))
    assert caught.value.retry_s == 0.25


def test_what_is_not_ours_travels_as_the_root_of_errors():
    obj = wire.parse_object(wire.error_line(1, KeyError("x")))
    assert obj["error"] == "JoulewiseError"


def test_an_error_of_a_newer_daemon_is_still_one_of_ours():
    for name in ("SomethingNew", "annotations", "__doc__"):
        with pytest.raises(JoulewiseError, match="said so"):
            wire.raise_error({"id": 1, "error": name, "message": "said so"})


def test_an_answer_that_would_be_too_long_is_an_error_instead():
    line = wire.answer(9, {"text": "x" * wire.MOST_BYTES})
    assert len(line) <= wire.MOST_BYTES
    with pytest.raises(BadMessage):
        wire.raise_error(wire.parse_object(line))


@given(finite)
def test_numbers_arrive_exactly(value: float):
    assert wire.parse_object(wire.line({"x": value})) == {"x": value}


choices = st.one_of(
    st.lists(positive, min_size=1, max_size=20).map(Choices.of),
    st.tuples(positive, positive).map(lambda ends: Choices(min(ends), max(ends))),
    st.tuples(positive, positive, positive).map(lambda t: Choices(min(t[:2]), max(t[:2]), t[2])),
)


@given(st.dictionaries(st.sampled_from([knob.name for knob in KNOBS]), choices))
def test_a_space_arrives_as_it_was(knobs: dict[str, Choices]):
    space = Space(knobs)
    assert to_space(wire.parse_object(wire.line(from_space(space)))) == space


maybe = st.none() | finite
readings = st.builds(
    Reading,
    time_s=finite,
    power_w=maybe,
    average_power_w=maybe,
    power_limit_w=maybe,
    sm_mhz=maybe,
    memory_mhz=maybe,
    utilization=maybe,
    memory_utilization=maybe,
    temperature_c=maybe,
    memory_used_bytes=st.none() | st.integers(0, 2**52),
    throttle=st.none() | st.frozensets(st.sampled_from(list(Throttle))),
)


@given(readings)
def test_a_reading_arrives_as_it_was_and_what_is_not_known_is_not_sent(reading: Reading):
    obj = wire.parse_object(wire.line(from_reading(reading)))
    assert None not in obj.values()
    assert to_reading(obj) == reading


@given(finite, finite, finite)
def test_an_energy_reading_arrives_as_it_was(time_s: float, energy_j: float, call_s: float):
    energy = EnergyReading(time_s, energy_j, call_s)
    assert to_energy(wire.parse_object(wire.line(from_energy(energy)))) == energy


@given(st.builds(Restored, names, names, st.sampled_from(list(Ending)), maybe, maybe, maybe, st.text(max_size=200)))
def test_how_a_knob_came_back_arrives_as_it_was(restored: Restored):
    assert to_restored(wire.parse_object(wire.line(from_restored(restored)))) == restored


def test_an_ending_that_we_do_not_know_is_a_bad_message():
    with pytest.raises(BadMessage):
        to_restored({"gpu": "G", "knob": "sm_mhz", "ending": "vanished", "before": None, "wrote": None, "after": None})


@given(st.builds(Notice, names, st.text(max_size=100), st.none() | names, st.none() | names, maybe, maybe))
def test_a_notice_arrives_as_it_was(notice: Notice):
    obj = wire.parse_object(wire.line(from_notice("L", notice)))
    assert obj["lease"] == "L"
    assert to_notice(obj) == notice


def test_nothing_that_is_not_finite_is_ever_sent():
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="not JSON compliant"):
            wire.line({"x": value})
