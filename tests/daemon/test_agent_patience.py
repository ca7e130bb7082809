import threading

import pytest

from joulewise.core.errors import GpuLost, GpuStalled
from joulewise.core.timeline import VirtualTime
from joulewise.daemon.agent_patience import PatientGpu
from joulewise.device.virtual import VirtualGpu
from joulewise.model import catalog
from tests.daemon.running import until


class Slow(VirtualGpu):
    """A GPU whose driver answers when it is let."""

    def __init__(self):
        super().__init__(catalog.load("a100-sxm"), time=VirtualTime())
        self.answers, self.asked = threading.Event(), 0
        self.answers.set()

    def read(self):
        self.asked += 1
        self.answers.wait()
        return super().read()


def test_a_gpu_that_answers_is_read_as_it_is():
    gpu = Slow()
    patient = PatientGpu(gpu)
    assert patient.info == gpu.info
    assert patient.read() == gpu.read()
    assert patient.energy() == gpu.energy()
    assert patient.processes() == gpu.processes()
    assert patient.time is gpu.time


def test_what_it_raises_is_raised():
    gpu = Slow()
    gpu.fault(lost=True)
    with pytest.raises(GpuLost):
        PatientGpu(gpu).read()


def test_a_driver_that_hangs_is_waited_for_once_and_not_asked_again_until_it_comes_back():
    gpu = Slow()
    patient = PatientGpu(gpu, patience_s=0.01)
    gpu.answers.clear()
    for _ in range(3):
        with pytest.raises(GpuStalled, match="the driver does not answer"):
            patient.read()
    assert gpu.asked == 1

    def reads():
        try:
            return patient.energy()
        except GpuStalled:
            return None

    gpu.answers.set()
    until(reads)
