"""Virtual work that leaves a virtual GPU no gap."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from joulewise.device.node import RunningNode
from joulewise.device.work import Link
from joulewise.model.physics import Load


@contextmanager
def kept_busy(running: RunningNode, load: Load) -> Iterator[None]:
    """``load`` over and over on the first GPU, without a gap, from a thread of this process."""
    enough = threading.Event()
    link = Link(running.directory)

    def work() -> None:
        while not enough.is_set():
            link.work(load, hidden=True)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        enough.set()
        worker.join()
        link.close()
