import pytest

from joulewise.core.block import Block, Move, Role
from joulewise.core.decision import Decision
from joulewise.core.knob import DEFAULT, Setting


def test_a_block_speaks_per_unit_of_work():
    block = Block(DEFAULT, 0.0, 12.0, 20, 8.0, 4000.0, 40.0, 0.01, left_out_s=4.0)
    assert (block.unit_s, block.unit_j, block.power_w, block.power_error) == (0.4, 200.0, 500.0, 0.01)


@pytest.mark.parametrize(("work", "duration_s"), [(0, 1.0), (1, 0.0), (-1, 1.0)])
def test_a_block_without_work_or_time_is_refused(work, duration_s):
    with pytest.raises(ValueError, match="needs work and time"):
        Block(DEFAULT, 0.0, 1.0, work, duration_s, 1.0, 0.1, 0.01)


def test_a_move_names_the_setting_of_its_decision():
    assert Move(Decision(Setting(sm_mhz=1500), "try"), Role.PROBE).setting == Setting(sm_mhz=1500)
