"""Work handed to a virtual GPU ahead of time, as launches on a real one are."""

import itertools
import time

import pytest

from joulewise.device.node import spawn
from joulewise.device.work import MOST_AHEAD, Link


@pytest.fixture(scope="module")
def link(virtual_gpu):
    found = Link(virtual_gpu)
    yield found
    found.close()


@pytest.fixture(scope="module")
def virtual_gpu():
    with spawn("sim:h200", speed=50) as node:
        yield node.directory


def launched(link, count, gpu_s, ahead):
    """What was sent, some of it not done yet."""
    sent = []
    for _ in range(count):
        link.launch([(gpu_s, 0.5, 300.0)], ahead=ahead)
        sent.append(link.last_sent)
    return sent


def test_launched_work_leaves_no_gap_and_is_told_in_order(virtual_nvml):
    with spawn("sim:h200") as node:
        link = Link(node.directory)
        sent = launched(link, 6, gpu_s=0.05, ahead=2)
        assert [each.done is not None for each in sent] == [True] * 4 + [False] * 2
        link.wait()
        link.close()
    done = [each.done for each in sent]
    assert [each.started_s for each in done[1:]] == pytest.approx([each.finished_s for each in done[:-1]])


def test_a_gpu_that_lives_faster_has_as_long_to_go_on_with_by_the_wall(link):
    sent = launched(link, 102, gpu_s=1.0, ahead=2)  # fifty times as fast, so a hundred pieces instead of two
    assert [each.done is not None for each in sent] == [True] * 2 + [False] * 100
    time.sleep(0.3)  # fifteen seconds of the GPU's, in which the script does something else
    launched(link, 1, gpu_s=1.0, ahead=2)
    link.wait()
    done = [each.done for each in sent]
    assert all(one.finished_s == pytest.approx(other.started_s) for one, other in itertools.pairwise(done))


def test_no_more_answers_are_on_their_way_than_a_socket_holds(link):
    sent = launched(link, MOST_AHEAD + 3, gpu_s=0.05, ahead=4)
    assert [each.done is not None for each in sent].count(False) == MOST_AHEAD
    time.sleep(0.5)  # all of them are done, and nobody has read that
    link.wait()
    assert all(each.done is not None for each in sent)


def test_work_waits_for_what_was_launched(link):
    link.launch([(0.5, 0.5, 300.0)])
    launched = link.last_sent
    done = link.work([(0.1, 0.5, 300.0)])
    assert launched.done is not None
    assert done.started_s >= launched.done.finished_s
