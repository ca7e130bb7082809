"""Runs are folded while nobody asks: what has ended is taken in bit by bit, so that the first look after a long
absence, or at a store with years of runs in it, is as quick as any.

A little at a time, with rests: a server stands beside jobs that need the processors. What it is not: needed. Whoever
asks folds a little, too (``report.summaries``), and several servers of one store may do this at the same time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from joulewise.core.errors import JoulewiseError
from joulewise.report.summaries import PATIENCE_S, Summaries

EVERY_S = 10.0
"""Between two looks when all is folded: each is one small query."""
REST_S = 2 * PATIENCE_S
"""The same when there is more: a third of one processor at most."""
_log = logging.getLogger("joulewise.serve")


@asynccontextmanager
async def folding(
    summaries: Summaries, *, every_s: float = EVERY_S, rest_s: float = REST_S
) -> AsyncIterator[asyncio.Task[None]]:
    """Fold in the background while the context lasts."""
    task = asyncio.create_task(_fold(summaries, every_s, rest_s))
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _fold(summaries: Summaries, every_s: float, rest_s: float) -> None:
    told = False
    while True:
        behind = False
        try:
            await asyncio.to_thread(summaries.refresh, PATIENCE_S)
            behind, told = summaries.behind, False
        except Exception as error:  # a store that is away, or a fault of ours: it is tried again
            if not told:
                _log.warning("no run can be folded: %s", error, exc_info=not isinstance(error, JoulewiseError))
            told = True
        await asyncio.sleep(rest_s if behind else every_s)
