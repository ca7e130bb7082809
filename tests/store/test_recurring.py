import os

import pytest

from joulewise.core.event import Finished
from joulewise.store.recurring import interrupted, whereabouts, workload
from joulewise.store.views import Run

H200 = ["NVIDIA H200"]
WANTED = "least energy, at most 2.0 % slower"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("python train.py --seed 1", "python train.py --seed 2"),
        ("python train.py --seed=1 --lr 3", "python train.py --lr 3"),
        ("/usr/bin/python train.py", "/opt/venv/bin/python train.py"),
        ("python t.py --output_dir /a --run-name x", "python t.py --output_dir /b --run-name y"),
        ("torchrun --master-port 1 t.py", "torchrun --master-port 2 t.py"),
        ("python t.py --resume", "python t.py"),
        ("python t.py --resume --lr 3", "python t.py --lr 3"),
    ],
)
def test_what_changes_from_run_to_run_is_no_other_work(one, other):
    assert workload(one.split(), H200).fingerprint() == workload(other.split(), H200).fingerprint()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("python train.py --batch 1", "python train.py --batch 2"),
        ("python a.py", "python b.py"),
        ("python t.py --outliers 3", "python t.py --outliers 4"),
    ],
)
def test_what_makes_other_work_is_told_apart(one, other):
    assert workload(one.split(), H200).fingerprint() != workload(other.split(), H200).fingerprint()


def test_another_gpu_or_another_number_of_them_is_other_work():
    prints = {workload(["a"], gpus).fingerprint() for gpus in (H200, H200 * 2, ["NVIDIA A100"], [])}
    assert len(prints) == 4


def run(name="r", *, finished=None, **facts):
    gone = {**whereabouts(), "pid": 2**22 + 1, "pid_start": 5}  # above the highest pid there can be
    return Run(
        name, 0.0, 0.0, {"fingerprint": "f", "gpus": ["GPU-1"], "wanted": WANTED, **gone, **facts}, None, finished
    )


def test_a_run_that_was_killed_here_is_gone_on_with():
    assert interrupted([run("late"), run("early")], "f", ["GPU-1"], WANTED).name == "late"


@pytest.mark.parametrize(
    "other",
    [
        {"fingerprint": "g"},
        {"gpus": ["GPU-2"]},
        {"boot": "another"},
        {"host": "another"},
        {"simulated": True},
        {"wanted": "least energy, at most 10 % slower"},
        {"finished": Finished(1.0, "stopped", {})},
    ],
)
def test_a_run_of_other_work_elsewhere_or_that_has_ended_is_not(other):
    assert interrupted([run(**other)], "f", ["GPU-1"], WANTED) is None


def test_a_run_that_still_lives_is_not():
    alive = {key: value for key, value in whereabouts().items() if key.startswith("pid")}
    assert alive["pid"] == os.getpid()
    assert interrupted([run(**alive)], "f", ["GPU-1"], WANTED) is None


def test_only_the_latest_of_its_kind_counts():
    ended = run("late", finished=Finished(1.0, "stopped", {}))
    assert interrupted([ended, run("early")], "f", ["GPU-1"], WANTED) is None
