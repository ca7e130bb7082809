from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.words import first_of, short


def test_few_names_are_all_shown_and_of_many_the_first():
    assert first_of(["time_s", "power_w"]) == "time_s, power_w"
    assert first_of([]) == "none"
    assert first_of(str(number) for number in range(10)) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


@given(st.lists(st.text(max_size=200), max_size=40))
def test_however_long_names_are_what_is_shown_is_short(names):
    assert len(first_of(names)) <= 8 * (61 + 2) + 20
    assert all(len(short(name)) <= 61 for name in names)
