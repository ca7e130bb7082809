"""The body of a virtual GPU: work that is taken back. All else of it is seen through ``test_virtual``."""

from __future__ import annotations

import math

import pytest

from joulewise.core.timeline import VirtualTime
from joulewise.device.virtual import VirtualGpu
from joulewise.model import catalog
from joulewise.model.physics import Load

LOAD = Load(gpu_s=0.1, sm_share=0.9, dynamic_w=300.0)


def test_a_job_that_is_taken_back_is_never_done_and_the_next_begins_in_its_place():
    """One thread of a process goes, and its work with it; the work of another goes on."""
    time = VirtualTime()
    gpu = VirtualGpu(catalog.load("h200"), time=time, gain=1.0)
    under_way, waiting, other = (gpu.submit(LOAD, pid=7) for _ in range(3))
    begin_s = time.now_s()
    alone_s = gpu.board.expected_s(under_way) - begin_s
    time.sleep(0.4 * alone_s)
    gpu.withdraw([under_way, waiting])
    assert math.isinf(gpu.board.expected_s(under_way))
    assert math.isinf(gpu.board.expected_s(waiting))
    time.sleep(1.2 * alone_s)
    gpu.read()
    assert (under_way.finished_s, waiting.finished_s) == (None, None)
    assert other.finished_s == pytest.approx(begin_s + 1.4 * alone_s, abs=0.05 * alone_s)
