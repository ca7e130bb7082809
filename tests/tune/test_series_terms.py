"""A job in words: what runs are chosen by, and what two of one name differ in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.tune.series_terms import differences, objective
from tests.tune.series_jobs import job

PRICES = {"what": "money", "gpu_hour_price": 2.5, "kwh_price": 0.3}
AIMS = {
    "least 0.5 × energy + 0.5 × max power × time": {"what": "zeus"},
    "least 0.25 × energy + 0.75 × max power × time": {"what": "zeus", "eta": 0.25},
    "least energy": {"what": "energy", "deadline_s": None},
    "least energy within 2 h 00 min": {"what": "energy", "deadline_s": 7200.0},
    "least energy, at most 10 % slower than the default": {"what": "energy", "max_slowdown": 0.1},
    "least money: 2.5 a GPU hour, 0.3 a kWh": PRICES,
    "least money: 0 a GPU hour, 0.3 a kWh": {"what": "money", "kwh_price": 0.3},
    "least money: 2.5 a GPU hour, 0.3 a kWh, 400 W for the node": {**PRICES, "host_w": 400.0},
}
aims = st.sampled_from(list(AIMS.values()))


@pytest.mark.parametrize(("words", "aim"), AIMS.items())
def test_every_objective_has_words(words, aim):
    assert objective(job(objective=aim)) == words


@given(aims, aims, st.sampled_from([5, 6]), st.sampled_from(["a>=1", "a>=2"]))
def test_what_differs_is_named_once_and_what_does_not_is_not(one, other, most, target):
    known, wanted = job(objective=one), job(objective=other, max_epochs=most, target=target)
    said = differences(known, wanted)
    assert len(said) == 2 + (one != other)
    assert not any("{" in line for line in said)
    assert differences(known, known) == differences(wanted, wanted) == []


def test_one_epoch_is_one():
    assert differences(job(max_epochs=1), job(max_epochs=2)) == ["at most 1 epoch, not 2 epochs"]


def test_what_differs_too_little_for_words_differs_all_the_same():
    near = job(objective={"what": "zeus", "eta": 0.3}), job(objective={"what": "zeus", "eta": 0.3 + 1e-12})
    assert differences(*near) == ["another objective"]
