import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.cli.recur_pattern import Patterns
from joulewise.cli.recur_terms import Rate, Target, batch_sizes, filled, objective, refuse_unfit, seconds
from joulewise.cli.recur_watch import Watch, ran_out_of_memory
from joulewise.core.errors import BadSpec
from joulewise.core.metric import Metric

NO_PRICES = {"eta": None, "gpu_hour_price": None, "kwh_price": None, "host_watts": None}


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("8..256", (8, 16, 32, 64, 128, 256)),
        ("8..256*2", (8, 16, 32, 64, 128, 256)),
        ("8..256*4", (8, 32, 128)),
        ("32, 8,16,8", (8, 16, 32)),
        ("8..32,48", (8, 16, 32, 48)),
        ("12..50", (12, 24, 48)),
        ("7", (7,)),
    ],
)
def test_batch_sizes_are_ranges_and_lists(text, sizes):
    assert batch_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "8..", "256..8", "0..8", "8..256*1", "8;16", "-8", "8..16..32", "1..9**", "²"])
def test_what_is_no_batch_size_is_refused_with_the_way_out(text):
    with pytest.raises(BadSpec, match=r"8\.\.256"):
        batch_sizes(text)


def test_a_range_of_thousands_is_a_slip():
    with pytest.raises(BadSpec, match="100 sizes; 64 is the most"):
        batch_sizes(",".join(map(str, range(1, 101))))


@pytest.mark.parametrize(
    ("text", "met", "missed"),
    [
        ("val_acc>=0.84", 0.84, 0.8399),
        ("val_acc > 0.84", 0.85, 0.84),
        ("loss<=2.1", 2.1, 2.11),
        ("eval/wer<4e1", 39.9, 40.0),
        ("score≥-1", 0.0, -2.0),
    ],
)
def test_a_target_is_a_metric_and_its_bound(text, met, missed):
    target = Target.of(text)
    assert target.met(met)
    assert not target.met(missed)
    assert not target.met(math.nan)
    assert target.better(met, missed)


@pytest.mark.parametrize("text", ["", "val_acc", "val_acc=0.84", "val_acc>=high", ">=0.84", "a>=1>=2", "a>=1.2.3"])
def test_what_is_no_target_is_refused(text):
    with pytest.raises(BadSpec, match=r"val_acc>=0\.84"):
        Target.of(text)


def test_the_learning_rate_follows_the_batch_size_by_its_rule():
    assert Rate.of(None, None, 32) is None
    sqrt, linear, none = (Rate.of(0.1, rule, 32) for rule in (None, "linear", "none"))
    assert [round(rate.at(128), 9) for rate in (sqrt, linear, none)] == [0.2, 0.4, 0.1]
    assert sqrt.at(32) == linear.at(32) == none.at(32) == 0.1
    for base, rule in ((None, "sqrt"), (0.0, None), (math.inf, None), (0.1, "cubic")):
        with pytest.raises(BadSpec):
            Rate.of(base, rule, 32)


def test_places_are_filled_in_and_other_braces_left_alone():
    command = ["train", "--b={batch_size}", "{learning_rate}", "{{batch_size}}", '{"a": {"b": 1}}', "${HOME}{epochs}"]
    rate = Rate(0.003, 16)
    refuse_unfit(command, rate)
    expected = ["train", "--b=64", "0.006", "{batch_size}", '{"a": {"b": 1}}', "${HOME}9"]
    assert filled(command, 64, 9, rate) == expected


@pytest.mark.parametrize(
    ("command", "rate", "says"),
    [
        (["train"], None, "no {batch_size}"),
        (["train", "{{batch_size}}"], None, "no {batch_size}"),
        (["train", "{batch_size}", "{lr}"], None, r"{lr} in the command is none of {batch_size}, {learning_rate}"),
        (["train", "{batch_size}", "{learning_rate}"], None, "needs --lr"),
        (["train", "{batch_size}"], Rate(0.1, 32), "no {learning_rate}"),
    ],
)
def test_a_command_that_would_not_hear_of_the_choice_is_refused(command, rate, says):
    with pytest.raises(BadSpec, match=says):
        refuse_unfit(command, rate)


def test_objectives_of_a_series_and_of_the_clocks_within():
    assert objective(None, None, None, **NO_PRICES)[0] == {"what": "zeus", "eta": 0.5}
    assert objective(None, None, None, **{**NO_PRICES, "eta": 0.7})[0] == {"what": "zeus", "eta": 0.7}
    assert objective("zeus:0.2", None, None, **NO_PRICES)[0] == {"what": "zeus", "eta": 0.2}
    assert objective(None, "10%", None, **NO_PRICES)[0] == {"what": "energy", "max_slowdown": 0.1}
    assert objective(None, None, "2h", **NO_PRICES)[0] == {"what": "energy", "deadline_s": 7200}
    assert objective("energy", None, None, **NO_PRICES)[0] == {"what": "energy"}
    priced = {**NO_PRICES, "gpu_hour_price": 2.0, "kwh_price": 0.3}
    whole, within = objective("money", None, None, **priced)
    assert whole == {"what": "money", "gpu_hour_price": 2.0, "kwh_price": 0.3, "host_w": 0.0}
    assert within.name == "money"
    for name, slower, deadline in (
        ("edp", None, None),
        ("zeus", "2%", None),
        ("money", None, None),
        (None, "2%", "1h"),
        ("zeus", None, "1h"),
        (None, None, "soon"),
    ):
        with pytest.raises(BadSpec):
            objective(name, slower, deadline, **NO_PRICES)


def test_times_have_units():
    assert [seconds("--grace", text) for text in ("90", "90s", "1.5m", "2 h", "1d")] == [90, 90, 90, 7200, 86400]


# Patterns.


def test_a_pattern_finds_metrics_with_their_epoch():
    patterns = Patterns([r"epoch (?P<epoch>\d+) .*val_acc=(?P<val_acc>[0-9.]+)"])
    assert patterns.find("nothing here") == []
    (found,) = patterns.find("\x1b[32mepoch 3 \x1b[0m took 4 s, val_acc=0.81, on")
    assert (found.epoch, found.values) == (3, {"val_acc": 0.81})


def test_epochs_that_are_counted_from_0_are_one_more_when_done():
    patterns = Patterns([r"epoch (?P<epoch>\d+): (?P<loss>\S+)"])
    found = [patterns.find(f"epoch {epoch}: 2.5")[0].epoch for epoch in range(3)]
    assert found == [1, 2, 3]


def test_without_an_epoch_the_matches_of_each_pattern_are_counted():
    patterns = Patterns([r"loss=(?P<loss>\S+)", r"acc=(?P<acc>\S+)"])
    lines = ["loss=1", "acc=nan", "loss=0.5 acc=0.7", "loss=bad"]
    found = [(each.epoch, *each.values) for line in lines for each in patterns.find(line)]
    assert found == [(1, "loss"), (1, "acc"), (2, "loss"), (2, "acc")]


@pytest.mark.parametrize("text", ["(", r"epoch (?P<epoch>\d+)", "val_acc=([0-9.]+)"])
def test_a_pattern_that_names_no_metric_is_refused(text):
    with pytest.raises(BadSpec, match="--metric-pattern"):
        Patterns([text])


# What is told of a trial.


def watched(*told: tuple[float, dict[str, float]], target: str = "val_acc>=0.8", most: int = 10) -> Watch:
    watch = Watch(Target.of(target), most)
    for time_s, (epoch, values) in enumerate(told):
        watch.take(Metric(time_s, epoch, values))
    return watch


def test_the_first_epoch_that_meets_the_target_counts():
    watch = watched((0, {"val_acc": 0.9}), (1, {"val_acc": 0.5}), (2, {"val_acc": 0.81}), (3, {"val_acc": 0.9}))
    assert (watch.reached.epochs, watch.reached.value, watch.epochs, watch.best) == (2, 0.81, 3, 0.9)


def test_a_target_met_within_an_epoch_took_the_whole_of_it_and_after_the_last_is_missed():
    assert watched((1.4, {"val_acc": 0.9})).reached.epochs == 2
    late = watched((10.5, {"val_acc": 0.9}))
    assert late.reached is None
    assert late.best == 0.9


def test_what_is_no_number_is_no_value_and_is_counted():
    watch = watched((1, {"val_acc": math.nan}), (2, {"val_acc": 0.7}), (3, {"val_acc": math.nan}))
    assert (watch.best, watch.not_numbers, watch.never_a_number) == (0.7, 2, False)
    assert watched((1, {"val_acc": math.nan})).never_a_number
    assert not watched((1, {"loss": 1.0})).never_a_number


def test_a_name_much_like_the_targets_is_a_slip_at_once():
    says = watched((1, {"val_accuracy": 0.5, "loss": 1.0})).misspelt(over=False)
    assert "no metric is called 'val_acc', told are: val_accuracy, loss" in says
    assert "--target 'val_accuracy>=0.8'" in says
    for other in ("train_acc", "val_acc5", "val_loss"):
        assert watched((1, {other: 0.5})).misspelt(over=False) is None


def test_other_names_are_waited_for_until_the_next_epoch_begins_to_be_told():
    first = ((1, {"train_loss": 2.0}),)
    assert watched(*first).misspelt(over=False) is None
    assert watched(*first, (1, {"val_acc": 0.1}), (2, {"train_loss": 1.9})).misspelt(over=False) is None
    assert watched(*first, (2, {"train_loss": 1.9})).misspelt(over=False) is not None
    assert watched(*first).misspelt(over=True) is not None
    assert watched((0, {"train_loss": 2.0})).misspelt(over=False) is None
    assert watched().misspelt(over=True) is None


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(allow_nan=True)), max_size=20))
def test_what_was_reached_was_met_and_no_better_value_is_forgotten(told):
    watch = watched(*((epoch, {"val_acc": value}) for epoch, value in told))
    counted = [(epoch, value) for epoch, value in told if epoch > 0 and not math.isnan(value)]
    assert watch.best == max((value for _, value in counted), default=None)
    met = [math.ceil(epoch) for epoch, value in counted if value >= 0.8 and math.ceil(epoch) <= 10]
    assert (watch.reached.epochs if watch.reached else None) == (met[0] if met else None)


def test_running_out_of_memory_is_known_by_its_words():
    assert ran_out_of_memory(["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"])
    assert ran_out_of_memory(["RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"])
    assert not ran_out_of_memory(["ValueError: shapes do not match", "memory: 3 GiB"])
