"""What epochs cost, on a virtual GPU in virtual time, against its own truth."""

import pytest

from joulewise.cli.recur_epochs import Epochs
from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.metric import Metric
from joulewise.core.timeline import VirtualTime
from joulewise.device.virtual import VirtualGpu
from joulewise.model import catalog
from joulewise.model.physics import Load
from joulewise.monitor.sampler import Sampler

SLOW = Setting(sm_mhz=900)


class Training:
    """Epochs of busy work on one GPU, told to an ``Epochs`` as ``recur run`` does: looked at now and then."""

    def __init__(self) -> None:
        self.time = VirtualTime(100.0)
        self.gpu = VirtualGpu(catalog.load("h200"), time=self.time, seed=1)
        self.sampler = Sampler([self.gpu], seed=0)
        self.sampler.start()
        self.epochs = Epochs(self.sampler, self.time.now_s())

    def busy(self, duration_s: float, *, setting: Setting = DEFAULT) -> float:
        """Work for so long; the true joules of it."""
        before_j = self.gpu.truth().energy_j
        until_s = self.time.now_s() + duration_s
        while self.time.now_s() < until_s - 1e-9:
            self.gpu.submit(Load(0.25, 0.9, 350.0))
            self.time.sleep(0.25)
            self.epochs.look(setting)
        return self.gpu.truth().energy_j - before_j

    def tell(self, epoch: float) -> None:
        self.epochs.told(Metric(self.time.now_s(), epoch, {}))


@pytest.fixture
def training():
    made = Training()
    yield made
    made.sampler.stop()


def test_an_epoch_costs_what_the_gpu_drew_in_it(training):
    true_j = []
    for epoch in range(3):
        training.tell(epoch)
        true_j.append(training.busy(20.0))
    training.tell(3)
    (cost,) = training.epochs.profile()
    assert cost.setting == DEFAULT
    assert cost.duration_s == pytest.approx(20.0, rel=0.02)
    # The sensor's own gain (3 %) is in it, as it is in everything that is measured on this card.
    assert cost.energy_j == pytest.approx(sum(true_j) / 3, rel=0.08)
    assert cost.error_j < 0.05 * cost.energy_j


def test_what_came_before_training_is_left_out_once_an_epoch_without_it_is_known(training):
    training.busy(30.0)  # imports, data
    training.busy(10.0)
    training.tell(1)
    (first,) = training.epochs.profile(over=True)
    assert first.duration_s == pytest.approx(40.0, rel=0.02)
    training.busy(10.0)
    training.tell(2)
    (second,) = training.epochs.profile()
    assert second.duration_s == pytest.approx(10.0, rel=0.02)


def test_what_came_before_training_is_told_apart_whether_the_job_says_so_or_not(training):
    idle_s = training.epochs.before()
    training.time.sleep(30.0)
    training.busy(10.0)
    training.tell(1)
    assert idle_s == training.epochs.before() == (0.0, 0.0)  # one epoch does not say what of it was training
    training.busy(10.0)
    training.tell(2)
    before_s, before_j = training.epochs.before()
    assert before_s == pytest.approx(30.0, abs=1.0)
    assert 30.0 * 60.0 < before_j < 30.0 * 160.0  # an idle H200 draws some 70 W, and 120 W once it was busy


def test_where_training_said_that_it_begins_the_first_epoch_is_whole(training):
    true_j = training.busy(30.0)
    training.tell(0)
    training.busy(10.0)
    training.tell(1)
    (cost,) = training.epochs.profile(over=True)
    assert cost.duration_s == pytest.approx(10.0, rel=0.02)
    assert training.epochs.before() == (pytest.approx(30.0, rel=0.02), pytest.approx(true_j, rel=0.08))
    assert training.epochs.done == 1


def test_epochs_are_told_apart_by_what_was_in_force_and_mixed_ones_left_out(training):
    training.tell(0)
    training.busy(15.0)  # warming up
    training.tell(1)
    training.busy(10.0)
    training.tell(2)
    training.busy(5.0)
    training.busy(5.0, setting=SLOW)
    training.tell(3)
    training.busy(12.0, setting=SLOW)
    training.tell(4)
    costs = {cost.setting: cost.duration_s for cost in training.epochs.profile()}
    assert set(costs) == {DEFAULT, SLOW}
    assert costs[DEFAULT] == pytest.approx(10.0, rel=0.03)
    assert costs[SLOW] == pytest.approx(12.0, rel=0.03)


def test_an_epoch_longer_than_the_sensors_are_remembered_is_measured_all_the_same(training):
    training.tell(0)
    true_j = training.busy(600.0)
    training.tell(1)
    (cost,) = training.epochs.profile()
    assert cost.energy_j == pytest.approx(true_j, rel=0.08)


def test_tellings_within_an_epoch_and_over_several_are_epochs_all_the_same(training):
    training.tell(0)
    training.busy(9.0)  # warming up
    training.tell(0.5)
    training.busy(25.0)
    training.tell(3)
    (cost,) = training.epochs.profile()
    assert cost.duration_s == pytest.approx(10.0, rel=0.03)
    training.tell(3)  # once more, with other metrics
    training.tell(2)  # a script that starts over
    assert training.epochs.done == 3


def test_a_short_first_epoch_alone_is_no_measure_until_the_trial_is_over(training):
    training.tell(0)
    training.busy(20.0)
    training.tell(1)
    assert training.epochs.profile() == ()
    assert len(training.epochs.profile(over=True)) == 1
    training.busy(10.0)
    training.tell(2)
    (cost,) = training.epochs.profile()
    assert cost.duration_s == pytest.approx(10.0, rel=0.03)
    assert training.epochs.before()[0] == pytest.approx(10.0, rel=0.05)  # so much of it was no training


def test_a_long_first_epoch_counts_at_once_where_training_said_that_it_begins(training):
    training.tell(0)
    training.busy(90.0)
    training.tell(1)
    (cost,) = training.epochs.profile()
    assert cost.duration_s == pytest.approx(90.0, rel=0.02)
    training.busy(70.0)
    training.tell(2)
    assert training.epochs.before() == (0.0, 0.0)


def test_before_the_first_epoch_nothing_is_known(training):
    assert training.epochs.profile() == ()
    training.tell(0)
    assert training.epochs.profile() == ()


@pytest.mark.parametrize("steps", [1, 7, 40, 50, 51])
def test_epochs_of_any_number_of_steps_have_a_price(training, steps):
    """Zeus, D6: with few steps an epoch is over before it is measured, for ever."""
    true_j = 0.0
    training.tell(0)
    training.busy(0.25 * steps)
    for epoch in range(1, 5):
        training.tell(epoch)
        true_j += training.busy(0.25 * steps)
    training.tell(5)
    (cost,) = training.epochs.profile()
    assert cost.duration_s == pytest.approx(0.25 * steps, rel=0.03)
    assert cost.energy_j == pytest.approx(true_j / 4, abs=0.08 * true_j / 4 + 4.0 * cost.error_j)
