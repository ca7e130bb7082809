import itertools

import pytest

from joulewise.daemon.gather import Gather


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_in_whatever_order_they_come_all_are_handed_on_once_the_last_has(order: tuple[str, ...]):
    told: list[tuple[dict[str, object], dict[str, Exception]]] = []
    gather = Gather("abc", lambda *both: told.append(both))
    wrong = ValueError("b cannot")
    for gpu in order:
        assert told == []
        gather.slot(gpu)(None if gpu == "b" else gpu.upper(), wrong if gpu == "b" else None)
    assert told == [({"a": "A", "c": "C"}, {"b": wrong})]


def test_a_result_may_be_nothing():
    told: list[tuple[dict[str, object], dict[str, Exception]]] = []
    Gather(["a"], lambda *both: told.append(both)).slot("a")(None, None)
    assert told == [({"a": None}, {})]
