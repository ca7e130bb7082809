"""What is said of a lease: who has it, and whether all is as it was before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from joulewise.device.lease import Ended, Ending, Owner, Restored


def restored(ending: Ending) -> Restored:
    return Restored("GPU-1", "power_limit_w", ending, 700.0, 400.0, 700.0)


@given(st.lists(st.sampled_from(Ending)))
def test_an_end_is_clean_unless_a_knob_is_somebody_elses_now_or_could_not_be_given_back(endings):
    unclean = {Ending.FOREIGN, Ending.FAILED} & set(endings)
    assert Ended("released", tuple(map(restored, endings))).clean is not bool(unclean)


def test_an_owner_is_named_by_user_process_and_program_where_it_is_known():
    assert str(Owner("l1", 1000, 42, "python")) == "uid 1000 pid 42 (python)"
    assert str(Owner("l1", 1000, 42)) == "uid 1000 pid 42"
