"""The estimate of a fleet: by job, by GPU model and in all, its words, its page and its picture."""

import json
from dataclasses import replace

import pytest

from joulewise.core.units import J_PER_KWH
from joulewise.device.dcgm import METRICS
from joulewise.model.fleet import Interval, Sight
from joulewise.model.fleet_kin import kin_of
from joulewise.monitor.fleet import Fleet, Kind, Work
from joulewise.report import fleet_alike, fleet_page, fleet_plot
from joulewise.report import fleet_words as words
from joulewise.report.fleet import NO_JOB, estimate
from joulewise.report.fleet_alike import SMALLER
from joulewise.report.worth import Carbon

SEEN = Sight(600.0, sm_mhz=1850.0, memory_mhz=3201.0, busy=0.95, sm_active=0.9, dram_active=0.3)
KWH = 3.6e6


def kind(name: str, energy_j: float, *, held_j: float = 0.0, free_j: float = 0.0, gpus: int = 8) -> Kind:
    return Kind(name, gpus, energy_j, held_j, free_j, 100.0, 100.0, 690.0, 1980.0, 700.0, True)


def fleet(works: list[Work], kinds: list[Kind], missing=(), notes=()) -> Fleet:
    return Fleet(
        1.7e9, 1.7e9 + 2 * 86_400, 300.0, 2 * 86_400.0, tuple(kinds), tuple(works), tuple(missing), tuple(notes)
    )


def work(job: str, energy_j: float, *, name: str = "NVIDIA H200", seen: Sight = SEEN, **more) -> Work:
    return Work(name, job, 4, energy_j / seen.power_w, energy_j, seen, **more)


SMALL = fleet(
    [work("a", 20 * KWH), work("b", 10 * KWH, seen=replace(SEEN, power_w=350.0, busy=0.6, sm_active=0.5))],
    [kind("NVIDIA H200", 34 * KWH, held_j=3 * KWH, free_j=1 * KWH)],
)


@pytest.fixture(scope="module")
def found():
    return estimate(SMALL, 0.02)


def test_energies_are_a_day_of_what_was_covered(found):
    assert found.days == 2.0
    assert (found.kwh, found.held_kwh, found.free_kwh) == pytest.approx((17.0, 1.5, 0.5))
    assert found.saving.kwh == pytest.approx(15.0)
    assert {job.job: job.saving.kwh for job in found.jobs} == pytest.approx({"a": 10.0, "b": 5.0})


def test_means_of_jobs_models_and_the_whole_add_up(found):
    whole = found.saving.reached.mean
    assert sum(job.saving.reached.mean for job in found.jobs) == pytest.approx(whole, rel=0.03)
    assert sum(model.saving.reached.mean for model in found.models) == pytest.approx(whole, rel=0.03)


def test_the_interval_of_the_whole_is_narrower_than_the_sum_of_the_jobs_and_wider_than_independent_ones(found):
    halves = [job.saving.possible.half for job in found.jobs]
    assert 0.9 * sum(half**2 for half in halves) ** 0.5 < found.saving.possible.half < sum(halves)


def test_jobs_come_in_the_order_of_what_they_would_save(found):
    saved = [job.saving.reached.mean for job in found.jobs]
    assert saved == sorted(saved, reverse=True)


def test_what_is_small_is_estimated_together_and_no_energy_is_lost(monkeypatch):
    monkeypatch.setattr(fleet_alike, "MOST_WORKS", 4)
    works = [work(f"job-{i}" if i % 2 else "", (1000 - i) * KWH / 100) for i in range(40)]
    total_j = sum(each.energy_j for each in works)
    found = estimate(fleet(works, [kind("NVIDIA H200", total_j)]), 0.02)
    assert found.saving.kwh == pytest.approx(total_j / J_PER_KWH / 2.0)
    assert {SMALLER, NO_JOB} <= {job.job for job in found.jobs}


def test_many_small_jobs_are_estimated_with_their_like_and_come_to_the_same_as_one_by_one(monkeypatch):
    dense = Sight(680.0, 0.003, sm_mhz=1500.0, busy=0.99, sm_active=0.9, dram_active=0.15)
    streaming = Sight(330.0, 0.003, sm_mhz=1980.0, busy=0.99, sm_active=0.9, dram_active=0.85)
    works = [work(f"job-{i}", KWH, seen=streaming if i % 2 else dense) for i in range(80)]
    some = fleet(works, [kind("NVIDIA H200", 80 * KWH)])
    singly = estimate(some, 0.02).saving.share
    monkeypatch.setattr(fleet_alike, "MOST_WORKS", 10)
    monkeypatch.setattr(fleet_alike, "MOST_GROUPS", 16)
    grouped = estimate(some, 0.02).saving.share
    assert grouped.mean == pytest.approx(singly.mean, rel=0.1)
    assert grouped.half == pytest.approx(singly.half, rel=0.25)


def test_groups_are_of_one_look_and_rare_looks_go_with_what_they_look_most_like(monkeypatch):
    monkeypatch.setattr(fleet_alike, "MOST_WORKS", 0)
    monkeypatch.setattr(fleet_alike, "MOST_LOOKS", 2)
    shares = {0.15: 30, 0.85: 30, 0.75: 1}
    works = [
        work(f"{share}-{i}", KWH, seen=replace(SEEN, dram_active=share))
        for share, n in shares.items()
        for i in range(n)
    ]
    found = fleet_alike.condensed(works, {"NVIDIA H200": kin_of("NVIDIA H200")})
    assert sum(each.energy_j for each in found) == pytest.approx(61 * KWH)
    assert len(found) <= fleet_alike.MOST_GROUPS + 2
    actives = sorted({round(each.sight.dram_active or 0.0, 2) for each in found})
    assert actives[0] == 0.15
    assert min(actives[1:]) >= 0.75


def test_split_gpus_are_counted_and_not_estimated():
    some = fleet([work("a", 10 * KWH, split=True)], [kind("NVIDIA H200", 10 * KWH)])
    found = estimate(some, 0.02)
    assert found.split_kwh == pytest.approx(5.0)
    assert found.saving.kwh == 0.0
    assert found.models[0].split_kwh == pytest.approx(5.0)
    assert "MIG" in " ".join(words.idle(found))
    assert words.headline(found).endswith("was taken by GPUs split into MIG instances.")
    resting = replace(some, kinds=(kind("NVIDIA H200", 12 * KWH, held_j=2 * KWH),))
    assert words.headline(estimate(resting, 0.02)).endswith("by idle GPUs and GPUs split into MIG instances.")


def test_what_is_missing_and_what_stands_in_for_it_is_said():
    missing = [metric for metric in METRICS if metric.name in ("dram_active", "util", "energy_j")]
    told = " / ".join(estimate(fleet(list(SMALL.works), list(SMALL.kinds), missing, ["odd"]), 0.02).rests_on)
    assert "no DCGM_FI_PROF_DRAM_ACTIVE" in told
    assert "no DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION: joules are power summed over time" in told
    assert "GPU_UTIL" not in told  # the engine's activity tells it
    assert "odd" in told


def test_an_unknown_gpu_is_estimated_and_said_to_be_unknown():
    some = fleet([work("a", 10 * KWH, name="Accelerator 9")], [kind("Accelerator 9", 10 * KWH)])
    found = estimate(some, 0.02)
    assert "no law of this GPU is known" in " ".join(found.rests_on)
    assert found.saving.possible.high > 0.0


def test_the_headline_says_what_within_which_bound(found):
    said = words.headline(found)
    assert said.startswith("Tuning would save ")
    assert "kWh a day" in said
    assert "at most 2.0 % slower" in said


def test_money_and_carbon_follow_from_the_stated_saving(found):
    money, carbon = words.worth(found, 0.5, Carbon(400.0, "the grid's own, 2025"))
    assert money.startswith(words.between(found.saving.reached.times(0.5)) + " a day")
    assert "kg CO2e a day" in carbon
    assert carbon.endswith("at 400 g a kWh, source: the grid's own, 2025")
    assert next(words.worth(found, None, Carbon(400.0))).endswith("at 400 g a kWh, no source was given")
    assert list(words.worth(found, None, None)) == []


def test_json_has_every_number_and_no_nan(found):
    told = json.loads(json.dumps(words.plain(found, 0.3, Carbon(380.0, "a grid")), allow_nan=False))
    assert told["saving"]["reached_kwh"]["mean"] == found.saving.reached.mean
    assert told["jobs"][0]["saving"]["reached_share"]["low"] <= told["jobs"][0]["saving"]["reached_share"]["high"]
    assert told["money_a_day"]["mean"] == pytest.approx(0.3 * found.saving.reached.mean)
    assert told["carbon_g_a_day"]["mean"] == pytest.approx(380.0 * found.saving.reached.mean)
    assert (told["carbon_g_per_kwh"], told["carbon_source"]) == (380.0, "a grid")
    assert told["models"][0]["gpus"] == 8


def test_the_page_is_whole_and_a_jobs_name_is_harmless_in_it():
    some = fleet([work("<script>alert(1)</script>", 10 * KWH)], [kind("NVIDIA H200", 10 * KWH)])
    page = fleet_page.page(estimate(some, 0.02), 0.3, Carbon(380.0, "<script>"))
    assert "<script" not in page
    assert page.count("&lt;script&gt;") > 1
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert "http" not in page.replace("http-equiv", "")  # asks nobody for anything


@pytest.mark.parametrize("kind_of_file", ["png", "svg"])
def test_the_picture_is_drawn_with_any_name_in_it(tmp_path, kind_of_file):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    works = [work("$_{a}$ <b>", 10 * KWH), work("", 2 * KWH, split=True)]
    some = fleet(works, [kind("NVIDIA H200", 12 * KWH)])
    path = tmp_path / f"fleet.{kind_of_file}"
    fleet_plot.draw(path, estimate(some, 0.02))
    assert path.stat().st_size > 1000


def test_numbers_have_as_many_decimals_as_their_interval_justifies():
    assert words.between(Interval(41.23, 25.4, 66.2)) == "41 (25 to 66)"
    assert words.between(Interval(0.412, 0.254, 0.662)) == "0.41 (0.25 to 0.66)"
    assert words.percents(Interval(0.051, -0.001, 0.08)) == "5.1 % (0.0 to 8.0 %)"
    assert [words.amount(value) for value in (0.0, 1234.5, 12.34, 0.01234)] == ["0", "1,234", "12.3", "0.0123"]
