"""Waiting for one result from each of several GPUs without waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class Gather:
    """Collects what comes back; once all have, hands on the results and the errors, each by GPU."""

    def __init__(self, gpus: Iterable[str], then: Callable[[dict[str, Any], dict[str, Exception]], None]) -> None:
        self._missing = set(gpus)
        self._then = then
        self._results: dict[str, Any] = {}
        self._errors: dict[str, Exception] = {}

    def slot(self, gpu: str) -> Callable[[Any, Exception | None], None]:
        """Where the result of ``gpu`` goes."""

        def put(result: Any, error: Exception | None) -> None:
            if error is None:
                self._results[gpu] = result
            else:
                self._errors[gpu] = error
            self._missing.discard(gpu)
            if not self._missing:
                self._then(self._results, self._errors)

        return put
