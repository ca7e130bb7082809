"""How a trial stands, by what it has told."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.cli.recur_terms import Target
from joulewise.cli.recur_watch import Watch, ran_out_of_memory
from joulewise.core.metric import Metric

HIGH, LOW = Target("val_acc", ">=", 0.5), Target("val_loss", "<=", 2.0)
values = st.floats(allow_nan=True, allow_infinity=True)
epochs = st.floats(0, 50)


def watched(target: Target, *told: tuple[float, float], most: int = 20) -> Watch:
    watch = Watch(target, most)
    for epoch, value in told:
        watch.take(Metric(epoch, epoch, {target.name: value}))
    return watch


# Laws.


@given(st.sampled_from([HIGH, LOW]), st.lists(st.tuples(epochs, values)), st.integers(1, 50))
def test_the_first_value_that_will_do_in_time_is_the_one_that_counts(target, told, most):
    watch = watched(target, *told, most=most)
    there = [(epoch, value) for epoch, value in told if epoch > 0 and target.met(value) and math.ceil(epoch) <= most]
    if there:
        assert (watch.reached.epochs, watch.reached.value) == (math.ceil(there[0][0]), there[0][1])
    else:
        assert watch.reached is None


@given(st.sampled_from([HIGH, LOW]), st.lists(st.tuples(epochs, values)))
def test_the_best_is_one_that_was_told_and_none_was_nearer(target, told):
    watch = watched(target, *told)
    numbers = [value for epoch, value in told if epoch > 0 and not math.isnan(value)]
    assert watch.best in numbers or (watch.best is None and not numbers)
    assert not any(target.better(value, watch.best) for value in numbers)
    assert watch.told - watch.not_numbers == len(numbers)
    assert watch.never_a_number == (watch.told > 0 and not numbers)


@given(st.lists(epochs))
def test_epochs_never_go_back_and_only_whole_ones_count(told):
    watch = Watch(HIGH, 20)
    before = 0
    for epoch in told:
        watch.take(Metric(0.0, epoch, {}))
        assert watch.epochs >= before
        before = watch.epochs
    assert watch.epochs == math.floor(max(told, default=0))


# What it promises besides.


def test_what_is_told_before_the_first_epoch_says_nothing_of_training():
    watch = watched(HIGH, (0, 0.9))
    assert (watch.reached, watch.best, watch.told) == (None, None, 0)


def test_a_target_within_an_epoch_takes_the_whole_epoch():
    assert watched(HIGH, (2.5, 0.6)).reached.epochs == 3


def tell(watch: Watch, epoch: float, *names: str) -> str | None:
    watch.take(Metric(epoch, epoch, dict.fromkeys(names, 1.0)))
    return watch.misspelt(over=False)


@pytest.mark.parametrize("slip", ["val_accuracy", "valacc", "val_ac"])
def test_a_name_much_like_the_targets_is_a_slip_at_once_and_the_right_one_is_written_out(slip):
    said = tell(Watch(HIGH, 20), 1, slip, "loss")
    assert said.startswith(f"no metric is called 'val_acc', told are: {slip}, loss; write --target '{slip}>=0.5'")


@pytest.mark.parametrize(("wanted", "told"), [("val_acc", "train_acc"), ("top1_acc", "top5_acc"), ("val_acc", "loss")])
def test_another_metric_is_no_slip_and_the_whole_first_epoch_is_waited_for(wanted, told):
    watch = Watch(Target(wanted, ">=", 0.5), 20)
    assert tell(watch, 0.5, told) is None
    assert tell(watch, 1, told) is None
    assert "name one of them" in tell(watch, 2, told)


def test_a_target_that_is_told_later_is_none_the_worse_for_it():
    watch = Watch(HIGH, 20)
    assert tell(watch, 1, "loss") is None
    assert tell(watch, 1, "val_acc") is None
    assert tell(watch, 5, "loss") is None


def test_at_the_end_nothing_is_waited_for_and_silence_is_no_slip():
    watch = Watch(HIGH, 20)
    assert watch.misspelt(over=True) is None
    tell(watch, 1, "loss")
    assert "name one of them" in watch.misspelt(over=True)


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "OSError: [Errno 12] Cannot allocate memory",
        "MemoryError",
    ],
)
def test_running_out_of_memory_is_known_by_what_programs_say(line):
    assert ran_out_of_memory(["Traceback", line, ""])


def test_other_faults_are_not_for_want_of_memory():
    assert not ran_out_of_memory(["MemoryErrors are counted", "ValueError: bad shape", "out of patience"])
    assert not ran_out_of_memory([])
