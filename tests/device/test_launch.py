"""Work handed to a virtual GPU ahead of time, as launches on a real one are."""

import pytest

from joulewise.device.node import spawn
from joulewise.device.work import Link


@pytest.fixture(scope="module")
def link(virtual_gpu):
    found = Link(virtual_gpu)
    yield found
    found.close()


@pytest.fixture(scope="module")
def virtual_gpu():
    with spawn("sim:h200", speed=50) as node:
        yield node.directory


def test_launched_work_leaves_no_gap_and_is_told_in_order(link):
    sent = []
    for _ in range(6):
        link.launch([(0.5, 0.5, 300.0)], ahead=2)
        sent.append(link.last_sent)
    assert [each.done is not None for each in sent] == [True] * 4 + [False] * 2
    link.wait()
    done = [each.done for each in sent]
    assert [each.started_s for each in done[1:]] == pytest.approx([each.finished_s for each in done[:-1]])


def test_work_waits_for_what_was_launched(link):
    link.launch([(0.5, 0.5, 300.0)])
    launched = link.last_sent
    done = link.work([(0.1, 0.5, 300.0)])
    assert launched.done is not None
    assert done.started_s >= launched.done.finished_s
