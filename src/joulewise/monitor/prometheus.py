"""Reading a Prometheus server's history, on the standard library alone.

What it is: range queries over its HTTP API (also that of Thanos, Mimir, Cortex and VictoriaMetrics), cut into pieces
that a server answers: at most 11,000 points a series, and a bounded number of values an answer. Reads only. What it is
not: a scraper, or an opinion about what series mean (``device/dcgm``).
"""

from __future__ import annotations

import http.client
import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.core.errors import BadSpec, NoReading

Array = NDArray[Any]

MOST_POINTS = 11_000
"""Of one series in one answer; the server refuses more."""
MOST_VALUES = 400_000
"""Of all series in one answer, as far as we can help it: some 20 MB of JSON."""
TIMEOUT_S = 120.0
_MOST_BYTES = 512 << 20
_WAY_OUT = "give the address that a browser shows Prometheus under, such as http://HOST:9090"


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

    def pieces(self, series: int) -> Iterator[Span]:
        """The span in pieces whose answers, of this many series, the server and we can hold."""
        most = max(1, min(MOST_POINTS, MOST_VALUES // max(series, 1)))
        for first in range(0, self.count, most):
            yield Span(self.start_s + first * self.step_s, self.step_s, min(most, self.count - first))


class Prometheus:
    """A server by its address. Nothing is sent before the first question; BadSpec for what is no address."""

    def __init__(self, url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise BadSpec(f"--prometheus {url!r} is no server's address; {_WAY_OUT}")
        if parts.username or parts.password:
            raise BadSpec("an address carries no password; give a token with --token-file, or a --header")
        try:
            _ = parts.port
        except ValueError as error:
            raise BadSpec(f"--prometheus {url!r} is no server's address: {error}; {_WAY_OUT}") from error
        self.url = url.rstrip("/")
        self._headers = {"Accept": "application/json", "User-Agent": "joulewise", **(headers or {})}
        self._timeout_s = timeout_s
        self._opener = urllib.request.build_opener(_NoRedirect())

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
        """What a range query answers at the moments of ``span``, at most 11,000 of them."""
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
        """One question; posted, since selectors may be long. NoReading where no answer comes, BadSpec where the
        question, the address or the token is not taken."""
        request = urllib.request.Request(
            f"{self.url}/api/v1/{what}", data=urllib.parse.urlencode(fields).encode(), headers=self._headers
        )
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                body = response.read(_MOST_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error) from None
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", None) or error
            raise NoReading(f"{self.url} does not answer: {str(why) or type(why).__name__}; {_WAY_OUT}") from error
        return _content(body, self.url)

    def _refused(self, error: urllib.error.HTTPError) -> BadSpec | NoReading:
        if error.code in (401, 403):
            return BadSpec(f"{self.url} refuses ({error.code}): give a token with --token-file, or a --header")
        if 300 <= error.code < 400:
            to = error.headers.get("Location", "elsewhere")
            return BadSpec(f"{self.url} points to {to}; a token is for one server alone, so give its address itself")
        try:
            told = str(json.loads(error.read(1 << 20))["error"])
        except (ValueError, TypeError, KeyError, OSError, http.client.HTTPException):
            if error.code == 404:
                return BadSpec(f"{self.url} has no /api/v1; {_WAY_OUT}")
            return NoReading(f"{self.url} answers {error.code} {error.reason}; try again, or ask who runs it")
        if error.code in (503, 504) or "too many samples" in told or "timed out" in told:
            return NoReading(f"{self.url}: {told}; ask for less with --days, --match or a longer --step")
        return BadSpec(f"{self.url}: {told}")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token is for the server that was named, not for one that it points to."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _content(body: bytes, url: str) -> Any:
    try:
        answer = json.loads(body)
        if answer["status"] != "success":
            raise NoReading(f"{url}: {answer.get('error', 'no success')}")
        return answer["data"]
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
