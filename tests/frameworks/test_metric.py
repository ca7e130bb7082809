"""``joulewise.metric`` and ``joulewise.should_stop`` in processes of their own, read as ``recur run`` reads them."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from joulewise.core.marks import Clock
from joulewise.core.metric import ENVIRONMENT
from joulewise.monitor.metrics import Metric, MetricFeed
from tests.frameworks.conftest import Client

SOURCES = Path(__file__).parents[2] / "src"


def environ(directory: Path | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in (ENVIRONMENT, "RANK", "SLURM_PROCID")}
    named = {} if directory is None else {ENVIRONMENT: str(directory)}
    return {**kept, "PYTHONPATH": str(SOURCES), **named}


def ran(script: str, directory: Path | None, **more: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], env={**environ(directory), **more}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Reader:
    """What ``recur run`` does with a directory: reads, says stop after an epoch, answers."""

    def __init__(self, directory: Path, stop_after: float) -> None:
        self.found: list[Metric] = []
        self._feed, self._stop_after = MetricFeed(directory), stop_after
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._over.wait(0.01):
            self.found += self._feed.read()
            if any(metric.epoch >= self._stop_after for metric in self.found):
                self._feed.stop()
            self._feed.answer()


def test_what_is_told_is_read_with_its_time_and_what_is_no_number_left_out(tmp_path):
    feed = MetricFeed(tmp_path)
    assert feed.read() == []
    ran(
        "import joulewise\n"
        "joulewise.metric(epoch=0)\n"
        "joulewise.metric(epoch=1, val_acc=0.5, name='best', shape=[1, 2], nothing=None)\n"
        "joulewise.metric(epoch=2, val_acc=float('nan'), loss=float('inf'))\n"
        "joulewise.metric(epoch='third', val_acc=0.7)\n"
        "joulewise.metric(epoch=float('nan'), val_acc=0.7)\n",
        tmp_path,
    )
    begun, first, second = feed.read()
    assert (begun.epoch, begun.values) == (0, {})
    assert (first.epoch, first.values, first.clock) == (1, {"val_acc": 0.5}, Clock.HOST)
    assert math.isnan(second.values["val_acc"])
    assert second.values["loss"] == math.inf
    assert begun.time_s <= first.time_s <= second.time_s
    assert feed.read() == []


def test_without_a_reader_nothing_is_told_nothing_is_waited_for_and_nothing_stops(tmp_path):
    said = "import joulewise, os; joulewise.metric(epoch=1, a=1); print(joulewise.should_stop(), os.listdir('.'))"
    assert ran(f"import os; os.chdir({str(tmp_path)!r}); {said}", None) == "False []\n"


def test_a_directory_that_is_gone_is_no_business_of_the_job(tmp_path):
    script = "import joulewise; joulewise.metric(epoch=1, a=1); print(joulewise.should_stop())"
    assert ran(script, tmp_path / "gone") == "False\n"


def test_only_rank_0_is_heard(tmp_path):
    ran("import joulewise; joulewise.metric(epoch=1, a=1)", tmp_path, RANK="1")
    assert MetricFeed(tmp_path).read() == []
    ran("import joulewise; joulewise.metric(epoch=1, a=1)", tmp_path, RANK="0")
    assert len(MetricFeed(tmp_path).read()) == 1


def test_the_answer_to_an_epoch_is_known_right_after_it(tmp_path):
    script = (
        "import joulewise\n"
        "from joulewise.frameworks import metric\n"
        "metric.ANSWER_S = 60.0\n"  # a busy machine may keep the reader waiting
        "for epoch in range(1, 100):\n"
        "    joulewise.metric(epoch=epoch, a=1)\n"
        "    if joulewise.should_stop(): break\n"
        "print(epoch)\n"
    )
    feed = MetricFeed(tmp_path)
    assert not feed.asked
    with Reader(tmp_path, stop_after=7):
        assert ran(script, tmp_path) == "7\n"
    assert feed.asked


def test_an_answer_that_never_comes_is_waited_for_once(tmp_path):
    script = (
        "import joulewise\n"
        "from joulewise.frameworks import metric\n"
        "class Time:\n"
        "    now_s = 0.0\n"
        "    def monotonic(self): return self.now_s\n"
        "    def sleep(self, for_s): self.now_s += for_s\n"
        "metric.time = Time()\n"
        "for epoch in range(1, 4):\n"
        "    joulewise.metric(epoch=epoch, a=1)\n"
        "    joulewise.should_stop()\n"
        "    print(metric.time.now_s >= metric.ANSWER_S, metric.time.now_s < 2 * metric.ANSWER_S)\n"
    )
    assert ran(script, tmp_path) == "True True\n" * 3


def test_forked_children_tell_in_files_of_their_own(tmp_path):
    script = (
        "import joulewise, os\n"
        "joulewise.metric(epoch=1, a=1)\n"
        "child = os.fork()\n"
        "joulewise.metric(epoch=2, a=child == 0)\n"
        "if child: os.wait()\n"
    )
    ran(script, tmp_path)
    assert len(list(tmp_path.glob("*.metrics"))) == 2
    assert sorted((each.epoch, each.values["a"]) for each in MetricFeed(tmp_path).read()) == [(1, 1), (2, 0), (2, 1)]


@pytest.mark.slow
@pytest.mark.exhaustive  # that of a Hugging Face trainer at work is in test_trainers
def test_a_hugging_face_trainer_tells_its_evaluations_and_stops_when_told(tmp_path, client: Client):
    told = tmp_path / "told"
    told.mkdir()
    with Reader(told, stop_after=3) as reader:
        assert "stopped after epoch 3\n" in client("metric_train.py", "hf", environ=environ(told), cwd=tmp_path)
    assert [each.epoch for each in reader.found] == [0, 1, 2, 3]
    assert {"eval_loss", "eval_accuracy"} <= set(reader.found[-1].values)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_lightning_trainer_tells_what_it_logs_and_stops_when_told(tmp_path, client: Client):
    told = tmp_path / "told"
    told.mkdir()
    with Reader(told, stop_after=3) as reader:
        assert "stopped after epoch 3\n" in client("metric_train.py", "lightning", environ=environ(told), cwd=tmp_path)
    assert [each.epoch for each in reader.found] == [0, 1, 2, 3]
    assert set(reader.found[-1].values) == {"val_loss"}


@pytest.mark.slow
def test_all_ranks_get_rank_0s_answer_and_only_rank_0_tells(tmp_path, client: Client):
    told = tmp_path / "told"
    told.mkdir()
    with Reader(told, stop_after=5) as reader:
        out = client("metric_train.py", "ranks", environ=environ(told), cwd=tmp_path)
    assert sorted(out.splitlines()) == [f"rank {rank} stopped after epoch 5" for rank in range(2)]
    assert [each.epoch for each in reader.found] == [1, 2, 3, 4, 5]
