"""Reading a Prometheus server's history, on the standard library alone.

What it is: range queries over its HTTP API (also that of Thanos, Mimir, Cortex and VictoriaMetrics), cut into pieces
that a server answers: at most 11,000 points a series, a bounded number of values an answer, and less where it says that
this is too much. What fails in passing is asked again; what it warns of is kept. Reads only. What it is not: a scraper,
or an opinion about what series mean (``device/dcgm``).
"""

from __future__ import annotations

import http.client
import math
import re
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.core.errors import BadSpec, NoReading
from joulewise.core.parsing import json_value
from joulewise.core.timeline import TimeSource, WallTime

Array = NDArray[Any]

MOST_POINTS = 11_000
"""Of one series in one answer; the server refuses more."""
MOST_VALUES = 400_000
"""Of all series in one answer, as far as we can help it: some 20 MB of JSON."""
TIMEOUT_S = 120.0
"""For one answer: as long as Prometheus lets a query run, unless it is told otherwise."""
_PAUSES_S = (1.0, 4.0)  # before the second and the third try
_MOST_HALVINGS = 4  # without an answer in between: a server that is only slow keeps nobody for half an hour
_PASSING = (408, 429, 500, 502, 503)  # answers that may be others a moment later; of a proxy in front as well
_MOST_WARNINGS, _LONGEST_WARNING = 10, 300
_MOST_BYTES = 512 << 20
_WAY_OUT = "give the address that a browser shows Prometheus under, such as http://HOST:9090"
_LESS = "ask for less with --days, --match or a longer --step"
_RIGHTS = "give a token with --token-file, a --user with --password-file, or a --header"
# How servers say that a query is too large: Prometheus "too many samples", "timed out"; Thanos "exceeded series limit";
# Mimir "err-mimir-max-series-per-query", "exceeds the limit"; VictoriaMetrics "cannot select more than".
_TOO_MUCH = re.compile(r"too many|timed out|timeout|deadline|\blimit|exceed|err-\w+-max|more than", re.IGNORECASE)


class _Passing(NoReading):
    """May be answered a moment later."""


class _TooMuch(NoReading):
    """May be answered where less is asked for at a time."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series over a piece of a range; a moment without a value is NaN."""

    labels: Mapping[str, str]
    values: Array


@dataclass(frozen=True, slots=True)
class Span:
    """Moments from ``start_s`` (unix) on, ``step_s`` apart."""

    start_s: float
    step_s: float
    count: int

    @property
    def end_s(self) -> float:
        """The last moment."""
        return self.start_s + (self.count - 1) * self.step_s

    def part(self, first: int, count: int) -> Span:
        """``count`` of its moments from the ``first`` on, fewer where it ends before."""
        return Span(self.start_s + first * self.step_s, self.step_s, min(count, self.count - first))

    def pieces(self, series: int) -> Iterator[Span]:
        """The span in pieces whose answers, of this many series, the server and we can hold."""
        most = max(1, min(MOST_POINTS, MOST_VALUES // max(series, 1)))
        for first in range(0, self.count, most):
            yield self.part(first, most)


class Prometheus:
    """A server by its address. Nothing is sent before the first question; BadSpec for what is no address, and for a
    ``ca_file`` that holds no certificate: with one, only what it has signed is trusted."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        ca_file: Path | None = None,
        timeout_s: float = TIMEOUT_S,
        time: TimeSource | None = None,
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        if "@" in parts.netloc:  # first of all: what is wrong with the rest would show it
            raise BadSpec(f"an address carries no password; {_RIGHTS}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise BadSpec(f"--prometheus {url!r} is no server's address; {_WAY_OUT}")
        try:
            _ = parts.port
        except ValueError as error:
            raise BadSpec(f"--prometheus {url!r} is no server's address: {error}; {_WAY_OUT}") from error
        if ca_file is not None and parts.scheme == "http":
            raise BadSpec(f"--ca-file is for an encrypted connection, and {url} has none; give an https address")
        self.url = url.rstrip("/")
        self.warnings: list[str] = []
        """What its answers warned of, each once: parts of them may be missing."""
        self._headers = {"Accept": "application/json", "User-Agent": "joulewise", **(headers or {})}
        self._timeout_s = timeout_s
        self._time = time if time is not None else WallTime()
        self._answered = False
        self._most = MOST_POINTS  # moments in one question; fewer once it was too much
        trusted = [] if ca_file is None else [urllib.request.HTTPSHandler(context=_trusting(ca_file))]
        self._opener = urllib.request.build_opener(_NoRedirect(), *trusted)

    def now(self, query: str, time_s: float) -> list[tuple[dict[str, str], float]]:
        """What an instant query answers: labels and value of each series."""
        data = self._ask("query", {"query": query, "time": f"{time_s:.3f}"})
        found = []
        for each in _vector(data, "vector", self.url):
            value = _number(each["value"][1])
            if not math.isnan(value):
                found.append((dict(each["metric"]), value))
        return found

    def range(self, query: str, span: Span) -> list[Series]:
        """What a range query answers at the moments of ``span``, at most 11,000 of them. Where that is too much at a
        time for the server, half of it, from then on."""
        answers: list[tuple[int, list[Series]]] = []
        first = halvings = 0
        while first < span.count:
            part = span.part(first, self._most)
            try:
                answers.append((first, self._range(query, part)))
            except _TooMuch:
                if part.count == 1 or halvings == _MOST_HALVINGS:
                    raise
                self._most, halvings = part.count // 2, halvings + 1
            else:
                first, halvings = first + part.count, 0
        return answers[0][1] if len(answers) == 1 else _joined(answers, span.count)

    def _range(self, query: str, span: Span) -> list[Series]:
        asked = {
            "query": query,
            "start": f"{span.start_s:.3f}",
            "end": f"{span.end_s:.3f}",
            "step": f"{span.step_s:.3f}",
        }
        found = []
        for each in _vector(self._ask("query_range", asked), "matrix", self.url):
            values = np.full(span.count, math.nan)
            for time_s, text in each["values"]:
                place = round((float(time_s) - span.start_s) / span.step_s)
                if 0 <= place < span.count:
                    values[place] = _number(text)
            found.append(Series(dict(each["metric"]), values))
        return found

    def _ask(self, what: str, fields: Mapping[str, str]) -> Any:
        """One question, three times at most. NoReading where no answer comes, BadSpec where the question, the address
        or the token is not taken."""
        for pause_s in _PAUSES_S:
            try:
                return self._once(what, fields)
            except _Passing:
                self._time.sleep(pause_s)
        return self._once(what, fields)

    def _once(self, what: str, fields: Mapping[str, str]) -> Any:
        """One question; posted, since selectors may be long."""
        request = urllib.request.Request(
            f"{self.url}/api/v1/{what}", data=urllib.parse.urlencode(fields).encode(), headers=self._headers
        )
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                body = response.read(_MOST_BYTES)
                # Read up to a size, a connection that breaks is no error of the library's.
                if len(body) < min(_MOST_BYTES, int(response.headers.get("Content-Length") or 0)):
                    raise http.client.IncompleteRead(body)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._silent(getattr(error, "reason", None) or error) from error
        if len(body) >= _MOST_BYTES:
            raise _TooMuch(f"{self.url} answers with more than {_MOST_BYTES >> 20} MiB; {_LESS}")
        self._answered = True
        answer = _content(body, self.url)
        self._warned(answer)
        return answer["data"]

    def _silent(self, why: object) -> NoReading:
        """What it means that no answer came. A server that has answered before is there: it is slow, or restarts."""
        if isinstance(why, TimeoutError):
            if self._answered:
                return _TooMuch(f"{self.url} has not answered within {self._timeout_s:g} s; {_LESS}")
            return NoReading(f"{self.url} has not answered within {self._timeout_s:g} s; {_WAY_OUT}")
        said = str(why) or type(why).__name__
        if isinstance(why, ssl.SSLCertVerificationError):
            way_out = "if it is its own, give its CA with --ca-file, or in SSL_CERT_FILE"
            return NoReading(f"{self.url} has a certificate that is not trusted ({why.verify_message}); {way_out}")
        unreached = isinstance(why, (ConnectionRefusedError, socket.gaierror, ssl.SSLError))
        kind = NoReading if unreached and not self._answered else _Passing
        return kind(f"{self.url} does not answer: {said}; {'try again later' if self._answered else _WAY_OUT}")

    def _refused(self, error: urllib.error.HTTPError) -> BadSpec | NoReading:
        """What it means that it answered with an error."""
        if error.code in (401, 403):
            return BadSpec(f"{self.url} refuses ({error.code}): {_RIGHTS}")
        if 300 <= error.code < 400:
            to = error.headers.get("Location", "elsewhere")
            return BadSpec(f"{self.url} points to {to}; a token is for one server alone, so give its address itself")
        try:
            told = str(json_value(error.read(1 << 20))["error"])
        except (ValueError, TypeError, KeyError, OSError, http.client.HTTPException):
            told = ""
        said = told or f"it answers {error.code} {error.reason}"
        if error.code in (413, 504) or (_TOO_MUCH.search(told) and error.code != 429 and "parse error" not in told):
            return _TooMuch(f"{self.url}: {said}; {_LESS}")
        if error.code in _PASSING:
            return _Passing(f"{self.url}: {said}; try again later, or {_LESS}")
        if error.code == 404 and not told:
            return BadSpec(f"{self.url} has no /api/v1; {_WAY_OUT}")
        return BadSpec(f"{self.url}: {said}")

    def _warned(self, answer: Mapping[str, Any]) -> None:
        """Keep what an answer warns of: Thanos and Mimir answer with what they have where a part is out of reach."""
        warnings = answer.get("warnings") or []
        told = [str(each) for each in warnings] if isinstance(warnings, list) else [str(warnings)]
        if answer.get("isPartial") is True:  # VictoriaMetrics
            told.append("an answer is partial")
        for text in (" ".join(each.split())[:_LONGEST_WARNING] for each in told):
            if text not in self.warnings and len(self.warnings) < _MOST_WARNINGS:
                self.warnings.append(text)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token is for the server that was named, not for one that it points to."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _trusting(ca_file: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except OSError as error:  # ssl's own is one
        why = "it holds no certificate" if isinstance(error, ssl.SSLError) else (error.strerror or str(error)).lower()
        raise BadSpec(f"--ca-file {ca_file} cannot be used: {why}; it is to be a file in PEM") from None


def _joined(answers: Sequence[tuple[int, list[Series]]], count: int) -> list[Series]:
    """Answers about parts of a span, each with the place of its first moment, as one about all of it."""
    found: dict[frozenset[tuple[str, str]], Series] = {}
    for first, some in answers:
        for each in some:
            whole = found.setdefault(frozenset(each.labels.items()), Series(each.labels, np.full(count, math.nan)))
            whole.values[first : first + len(each.values)] = each.values
    return list(found.values())


def _content(body: bytes, url: str) -> dict[str, Any]:
    try:
        answer = json_value(body)
        if answer["status"] != "success":
            raise NoReading(f"{url}: {answer.get('error', 'no success')}")
        _ = answer["data"]
        return dict(answer)
    except (ValueError, TypeError, KeyError) as error:
        raise BadSpec(f"{url} answers, but not as Prometheus does; {_WAY_OUT}") from error


def _vector(data: Any, kind: str, url: str) -> list[Any]:
    if not isinstance(data, dict) or data.get("resultType") != kind or not isinstance(data.get("result"), list):
        raise BadSpec(f"{url} answers, but not as Prometheus does; {_WAY_OUT}")
    return list(data["result"])


def _number(text: str) -> float:
    """A value as Prometheus writes it; infinite ones are no measurement."""
    value = float(text)
    return value if math.isfinite(value) else math.nan
