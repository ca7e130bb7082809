import math
import shutil
import ssl
import subprocess
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from joulewise.core.errors import BadSpec, NoReading
from joulewise.core.timeline import VirtualTime
from joulewise.monitor.prometheus import MOST_POINTS, MOST_VALUES, Prometheus, Span
from tests.monitor.answering import answering, answering_by

GOOD = {"status": "success", "data": {"resultType": "vector", "result": []}}


def moments(fields: dict[str, str]) -> list[float]:
    """What a range question asks for."""
    start_s, end_s, step_s = (float(fields[name]) for name in ("start", "end", "step"))
    return [start_s + place * step_s for place in range(round((end_s - start_s) / step_s) + 1)]


def matrix(fields: dict[str, str]) -> dict:
    """Two series: one with its time as its value, one that is there from the fifth minute on."""
    values = [[at_s, str(at_s)] for at_s in moments(fields)]
    result = [{"metric": {"gpu": "0"}, "values": values}]
    if later := [value for value in values if value[0] >= 300.0]:
        result.append({"metric": {"gpu": "1"}, "values": later})
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def test_a_range_is_laid_on_its_moments_and_gaps_are_no_values():
    values = [[100.0, "5"], [130.0, "NaN"], [160.0, "+Inf"], [190.004, "8"]]
    data = {"resultType": "matrix", "result": [{"metric": {"gpu": "0"}, "values": values}]}
    with answering(200, {"status": "success", "data": data}) as (url, asked):
        (series,) = Prometheus(url).range("x", Span(100.0, 30.0, 5))
    assert series.labels == {"gpu": "0"}
    assert [None if math.isnan(value) else value for value in series.values] == [5.0, None, None, 8.0, None]
    path, fields, _ = asked[0]
    assert path == "/api/v1/query_range"
    assert {name: float(fields[name][0]) for name in ("start", "end", "step")} == {"start": 100, "end": 220, "step": 30}


def test_headers_go_with_every_question_and_a_path_before_the_api_is_kept():
    with answering(200, GOOD) as (url, asked):
        assert Prometheus(url + "/prom/", headers={"Authorization": "Bearer abc"}).now("up", 5.0) == []
    assert asked[0][0] == "/prom/api/v1/query"
    assert asked[0][2]["Authorization"] == "Bearer abc"


def test_pieces_cover_a_span_without_overlap_and_keep_both_limits():
    span = Span(0.0, 60.0, 30_000)
    for series in (1, 10, 5000, 10**6):
        pieces = list(span.pieces(series))
        assert sum(piece.count for piece in pieces) == span.count
        assert all(piece.count <= MOST_POINTS for piece in pieces)
        assert all(piece.count * series <= MOST_VALUES or piece.count == 1 for piece in pieces)
        for before, after in pairwise(pieces):
            assert after.start_s == before.end_s + 60.0


@pytest.mark.parametrize(
    ("code", "body", "kind", "words"),
    [
        (401, b"", BadSpec, "--token-file"),
        (404, b"not here", BadSpec, "has no /api/v1"),
        (400, {"status": "error", "error": "parse error"}, BadSpec, "parse error"),
        (422, {"status": "error", "error": "query processing would load too many samples"}, NoReading, "--days"),
        (422, {"status": "error", "error": "… (err-mimir-max-series-per-query)"}, NoReading, "ask for less"),
        (504, b"<html>", NoReading, "ask for less"),
        (400, {"status": "error", "error": "parse error: unexpected limit"}, BadSpec, "unexpected limit$"),
        (429, {"status": "error", "error": "too many outstanding requests"}, NoReading, "try again later"),
        (503, {"status": "error", "error": "query timed out"}, NoReading, "ask for less"),
        (502, b"<html>", NoReading, "502"),
        (200, b"<html>", BadSpec, "not as Prometheus does"),
        (200, b"[1, 2]", BadSpec, "not as Prometheus does"),
        (200, {"status": "success", "data": {"resultType": "string", "result": []}}, BadSpec, "not as Prometheus does"),
        (200, {"status": "error", "error": "no"}, NoReading, "no"),
    ],
)
def test_an_answer_that_is_none_is_one_line_with_the_way_out(code, body, kind, words):
    with answering(code, body) as (url, _), pytest.raises(kind, match=words) as caught:
        Prometheus(url, time=VirtualTime()).now("up", 1.0)
    assert "\n" not in str(caught.value)


def test_a_token_is_not_carried_to_where_a_server_points():
    with answering(200, GOOD) as (elsewhere, asked):
        with answering(302, b"", {"Location": elsewhere}) as (url, _), pytest.raises(BadSpec, match="points to"):
            Prometheus(url, headers={"Authorization": "Bearer abc"}).now("up", 1.0)
        assert asked == []


def test_a_server_that_is_not_there_is_one_line():
    with pytest.raises(NoReading, match="does not answer"):
        Prometheus("http://127.0.0.1:9").now("up", 1.0)


@pytest.mark.parametrize(
    "url", ["prometheus:9090", "ftp://x", "http://", "http://a:b@x", "ftp://a:b@x", "http://x:notaport", "http://x?q=1"]
)
def test_what_is_no_address_is_refused_before_anything_is_sent_and_without_showing_a_password(url):
    with pytest.raises(BadSpec) as caught:
        Prometheus(url)
    assert "a:b" not in str(caught.value)


@pytest.mark.parametrize("fault", [(503, b"upstream connect error"), (502, b"<html>"), (500, b""), None])
def test_what_fails_in_passing_is_asked_three_times_with_pauses_between(fault):
    time, answers = VirtualTime(), [fault, fault, (200, GOOD)]
    with answering_by(lambda *_: answers.pop(0)) as (url, asked):
        assert Prometheus(url, time=time).now("up", 1.0) == []
    assert len(asked) == 3
    assert time.now_s() == pytest.approx(5.0)


def test_what_fails_three_times_is_one_line():
    with answering(503, b"upstream connect error") as (url, asked), pytest.raises(NoReading, match="try again later"):
        Prometheus(url, time=VirtualTime()).now("up", 1.0)
    assert len(asked) == 3


def test_a_wrong_token_or_question_is_not_asked_again():
    with answering(401, b"") as (url, asked), pytest.raises(BadSpec):
        Prometheus(url, time=VirtualTime()).now("up", 1.0)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (422, {"status": "error", "error": "query processing would load too many samples into memory"}),
        (422, {"status": "error", "error": "the query hit the max number of series limit (limit: 9 series)"}),
        (504, b"<html>"),
    ],
)
def test_what_is_too_much_at_a_time_is_asked_in_halves_and_comes_back_whole(code, body):
    def answer(_path, fields):
        return (200, matrix(fields)) if len(moments(fields)) <= 3 else (code, body)

    span = Span(0.0, 60.0, 11)
    with answering_by(answer) as (url, asked):
        server = Prometheus(url, time=VirtualTime())
        one, later = server.range("x", span)
        assert list(one.values) == [60.0 * place for place in range(11)]
        assert [at_s for at_s in later.values if not math.isnan(at_s)] == [60.0 * place for place in range(5, 11)]
        before = len(asked)
        server.range("y", span)
    assert before == 2 + 6  # 11 and 5 are too much
    assert len(asked) - before == 6  # and are not tried again


def test_a_server_that_is_asked_for_ever_less_and_never_answers_is_given_up():
    with answering(504, b"") as (url, asked), pytest.raises(NoReading, match="ask for less with --days, --match"):
        Prometheus(url, time=VirtualTime()).range("x", Span(0.0, 60.0, 5000))
    assert len(asked) == 5


def test_a_server_that_has_answered_and_then_takes_too_long_is_asked_for_less():
    end = threading.Event()

    def answer(path, fields):
        if path.endswith("query_range") and len(moments(fields)) > 1:
            end.wait(30.0)
        return 200, matrix(fields) if path.endswith("query_range") else GOOD

    with answering_by(answer) as (url, _):
        server = Prometheus(url, timeout_s=0.5)
        server.now("up", 1.0)
        try:
            (series,) = server.range("x", Span(0.0, 60.0, 2))
        finally:
            end.set()
    assert list(series.values) == [0.0, 60.0]


def test_a_server_that_goes_away_while_it_is_read_is_not_taken_for_a_wrong_address():
    with answering(200, GOOD) as (url, _):
        server = Prometheus(url, time=VirtualTime())
        server.now("up", 1.0)
    with pytest.raises(NoReading, match="try again later"):
        server.now("up", 1.0)


def test_warnings_and_partial_answers_are_kept_each_once():
    warned = {**GOOD, "warnings": ["store 10.0.0.3:10901\nunavailable"], "isPartial": True}
    with answering(200, warned) as (url, _):
        server = Prometheus(url)
        server.now("up", 1.0)
        server.now("up", 2.0)
    assert server.warnings == ["store 10.0.0.3:10901 unavailable", "an answer is partial"]


@pytest.fixture
def own_certificate(tmp_path: Path) -> Path:
    """A certificate for localhost that no authority has signed, with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    made = tmp_path / "own.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-keyout", made, "-out", tmp_path / "c.pem"], check=True, capture_output=True)
    made.write_text(made.read_text() + (tmp_path / "c.pem").read_text())
    return made


def test_a_server_with_a_certificate_of_its_own_is_believed_with_its_ca_file_alone(own_certificate):
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(own_certificate)
    with answering_by(lambda *_: (200, GOOD), tls=tls) as (url, _):
        with pytest.raises(NoReading, match="give its CA with --ca-file, or in SSL_CERT_FILE"):
            Prometheus(url).now("up", 1.0)
        assert Prometheus(url, ca_file=own_certificate).now("up", 1.0) == []


@pytest.mark.parametrize(("text", "words"), [("no certificate", "it holds no certificate"), (None, "no such file")])
def test_a_ca_file_that_holds_no_certificate_is_refused(tmp_path, text, words):
    file = tmp_path / "ca.pem"
    if text is not None:
        file.write_text(text)
    with pytest.raises(BadSpec, match=words):
        Prometheus("https://x", ca_file=file)


def test_a_ca_file_for_a_server_without_encryption_is_refused(own_certificate):
    with pytest.raises(BadSpec, match="give an https address"):
        Prometheus("http://x", ca_file=own_certificate)
