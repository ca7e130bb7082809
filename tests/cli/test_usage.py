"""Which GPUs are a command's, where the driver's list tells, and in containers, where it does not."""

import os
import subprocess
import sys

import pytest

from joulewise.cli.gpus import OpenGpus
from joulewise.cli.usage import counted_outside, uses, why_not_told
from joulewise.core.errors import GpuLost
from joulewise.core.marks import ENVIRONMENT
from joulewise.core.measurement import Reading

NOBODY = 2**22 + 1  # above the highest pid there can be


class Gpu:
    def __init__(self, pids, utilization=0.5):
        self._pids, self._utilization = pids, utilization

    def processes(self):
        if isinstance(self._pids, Exception):
            raise self._pids
        return self._pids

    def read(self):
        return Reading(0.0, utilization=self._utilization)


@pytest.fixture
def mine(tmp_path):
    """A process that was started with our marks."""
    running = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, ENVIRONMENT: str(tmp_path)},
    )
    assert running.stdout is not None
    running.stdout.readline()  # until it runs its marks cannot be read
    yield running.pid
    running.communicate(b"\n")


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize("outside", [True, False])
def test_a_process_with_our_marks_tells_whatever_else_is_known(mine, tmp_path, chosen, outside):
    assert uses(Gpu((NOBODY, mine)), tmp_path, chosen=chosen, outside=outside)


@pytest.mark.parametrize("pids", [(), (NOBODY,)])
def test_on_the_machine_itself_the_list_is_believed(pids, tmp_path):
    assert not uses(Gpu(pids), tmp_path, chosen=True, outside=False)


@pytest.mark.parametrize("pids", [(), (NOBODY,), None])
def test_in_a_container_a_gpu_that_was_chosen_and_works_is_the_command_s(pids, tmp_path):
    assert uses(Gpu(pids), tmp_path, chosen=True, outside=True)
    assert uses(Gpu(pids, utilization=None), tmp_path, chosen=True, outside=True)
    assert not uses(Gpu(pids, utilization=0.0), tmp_path, chosen=True, outside=True)


@pytest.mark.parametrize("pids", [(), (NOBODY,), None])
def test_in_a_container_nobody_else_s_gpu_is_taken(pids, tmp_path):
    assert not uses(Gpu(pids), tmp_path, chosen=False, outside=True)


def test_processes_that_we_know_and_that_are_not_ours_are_somebody_else(tmp_path):
    assert not uses(Gpu((os.getpid(),)), tmp_path, chosen=True, outside=True)


def test_a_gpu_that_is_lost_is_nobody_s(tmp_path):
    assert not uses(Gpu(GpuLost("gone")), tmp_path, chosen=True, outside=True)


def test_where_nobody_can_tell_the_way_out_is_said():
    gpus = [Gpu(()), Gpu(())]
    assert "name them with --gpu or CUDA_VISIBLE_DEVICES" in why_not_told(gpus, chosen=False, outside=True)
    assert why_not_told(gpus, chosen=True, outside=True) is None
    assert why_not_told(gpus, chosen=False, outside=False) is None


def test_virtual_gpus_count_processes_as_we_do():
    assert not counted_outside(OpenGpus([], {}, "virtual", simulated=True))
