"""What is owed on a GPU that cannot be had is told, and stays owed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from joulewise.device.lease import Ending
from joulewise.device.rescue import rescue
from joulewise.device.saved import Saved

GONE = "GPU-00000000-dead-4000-8000-000000000000"


@pytest.mark.usefixtures("may_set")
def test_a_clock_that_is_to_stand_on_a_gpu_that_is_gone_is_not_passed_over(tmp_path: Path) -> None:
    with closing(Saved.open(tmp_path, GONE)) as saved:
        saved.stand("sm_mhz", 1410.0)
    for _ in range(2):
        (told,) = rescue(tmp_path, GONE)
        assert (told.gpu, told.knob, told.ending) == (GONE, "sm_mhz", Ending.FAILED)
        assert told.why.startswith("it is to stand at 1410 MHz; ")
