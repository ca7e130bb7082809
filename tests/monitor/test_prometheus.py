import math
from itertools import pairwise

import pytest

from joulewise.core.errors import BadSpec, NoReading
from joulewise.monitor.prometheus import MOST_POINTS, MOST_VALUES, Prometheus, Span
from tests.monitor.answering import answering

GOOD = {"status": "success", "data": {"resultType": "vector", "result": []}}


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
        Prometheus(url).now("up", 1.0)
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
    "url", ["prometheus:9090", "ftp://x", "http://", "http://a:b@x", "http://x:notaport", "http://x?q=1"]
)
def test_what_is_no_address_is_refused_before_anything_is_sent(url):
    with pytest.raises(BadSpec):
        Prometheus(url)
