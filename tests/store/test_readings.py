"""Readings on both engines: what is drawn is what was read, of a minute and of a month; damage stays where it is."""

import math
import random
import signal
import subprocess

import pytest

from joulewise.core.errors import NotKept
from joulewise.store import Database, Sample, SqliteStore, open_store
from joulewise.store.readings import BLOCK, Readings
from tests.store.test_journal import FullDisk
from tests.store.writing import started

RUN, GPU = "20260101-000000-abcd", "GPU-1"
START_S = 1.75e9


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.xdist_group("postgresql"))])
def store(request, tmp_path):
    named = tmp_path / "joulewise.db" if request.param == "sqlite" else request.getfixturevalue("database_url")
    store = open_store(named)
    yield store
    store.close()


@pytest.fixture
def readings(store):
    return store.readings()


def samples(count, *, start_s=START_S, step_s=1.0, seed=1):
    luck = random.Random(seed)
    return [
        Sample(start_s + step_s * n, 300 + 50 * math.sin(n / 900) + luck.gauss(0, 5), 1500.0, 2619.0, 61.0, 0.9, 700.0)
        for n in range(count)
    ]


def blocks(store):
    return store.tables.select("SELECT COUNT(*) FROM readings", {})[0][0]


def test_a_short_run_comes_back_reading_by_reading(readings):
    rows = samples(50)
    rows[7] = Sample(rows[7].at_s)  # nothing could be read then
    readings.write(RUN, GPU, rows)
    curve = readings.read(RUN, GPU)
    assert curve.time_s == pytest.approx([row.at_s for row in rows], abs=0.001)
    assert curve.power_w == pytest.approx([row.power_w for row in rows], abs=0.01)
    assert (curve.power_w[7], curve.low_w[7], curve.sm_mhz[7]) == (None, None, None)
    kinds = (curve.sm_mhz, curve.memory_mhz, curve.temperature_c, curve.utilization, curve.limit_w)
    assert [each[0] for each in kinds] == pytest.approx([1500.0, 2619.0, 61.0, 0.9, 700.0])


def test_readings_that_come_a_few_at_a_time_fill_the_same_blocks(store):
    rows = samples(2 * BLOCK + 100)
    for first in range(0, len(rows), 97):
        Readings(store.tables).write(RUN, GPU, rows[first : first + 97])  # another process each time
    assert blocks(store) == 3
    at_once = store.readings()
    at_once.write("other", GPU, rows)
    few = at_once.read(RUN, GPU, most_points=5000)
    assert few == at_once.read("other", GPU, most_points=5000)
    assert len(few.time_s) == len(rows)


def test_what_may_have_been_written_can_be_written_again(readings):
    rows = samples(30)
    readings.write(RUN, GPU, rows[:20])
    readings.write(RUN, GPU, rows[10:])
    readings.write(RUN, GPU, rows)
    assert len(readings.read(RUN, GPU).time_s) == 30


def test_two_that_write_in_turns_lose_nothing(store):
    one, other = store.readings(), Readings(store.tables)
    rows = samples(1500)
    for place in range(0, len(rows), 50):
        (one if place % 100 else other).write(RUN, GPU, rows[place : place + 50])
    curve = one.read(RUN, GPU, most_points=5000)
    assert curve.power_w == pytest.approx([row.power_w for row in rows], abs=0.01)


@pytest.mark.parametrize("days", [0.01, 0.2, 0.4])
def test_a_curve_has_few_points_and_the_means_lows_and_highs_of_all(readings, days):
    rows = samples(int(86_400 * days))
    readings.write(RUN, GPU, rows)
    curve = readings.read(RUN, GPU, most_points=200)
    assert len(curve.time_s) <= 200
    assert curve.time_s == sorted(curve.time_s)
    power_w = [row.power_w for row in rows]
    assert min(curve.low_w) == pytest.approx(min(power_w), abs=0.02)
    assert max(curve.high_w) == pytest.approx(max(power_w), abs=0.02)
    assert sum(curve.power_w) / len(curve.power_w) == pytest.approx(sum(power_w) / len(power_w), rel=0.02)
    for at_s, drawn_w in zip(curve.time_s, curve.power_w, strict=True):
        near = [row.power_w for row in rows[max(0, int(at_s - START_S) - 500) : int(at_s - START_S) + 500]]
        assert min(near) - 1 <= drawn_w <= max(near) + 1


def test_a_run_of_months_is_drawn_from_sums_alone(store):
    readings = store.readings()
    readings.write(RUN, GPU, samples(12 * BLOCK, step_s=60.0))
    store.tables.change(f"UPDATE readings SET coarse = {_bytes(store)}, detail = {_bytes(store)}", {})
    curve = readings.read(RUN, GPU, most_points=6)
    assert len(curve.time_s) == 6
    assert curve.damaged == 0
    assert all(250 < power_w < 350 for power_w in curve.power_w)


def test_a_line_of_sums_is_broken_too_where_nothing_was_read(readings):
    rows = [*samples(6 * BLOCK), *samples(6 * BLOCK, start_s=START_S + 7 * 86_400.0)]
    readings.write(RUN, GPU, rows)
    curve = readings.read(RUN, GPU, most_points=6)
    (gap,) = [place for place, power_w in enumerate(curve.power_w) if power_w is None]
    assert START_S + 6 * BLOCK < curve.time_s[gap] < START_S + 7 * 86_400.0


def test_a_stretch_is_drawn_in_detail(readings):
    readings.write(RUN, GPU, samples(40 * BLOCK))
    curve = readings.read(RUN, GPU, START_S + 20_000, START_S + 20_059)
    assert curve.time_s == pytest.approx([START_S + 20_000 + n for n in range(60)], abs=0.001)
    assert readings.read(RUN, GPU, START_S - 10, START_S - 5).time_s == []
    assert readings.read("nobody", GPU).time_s == []


def test_where_nothing_was_read_a_point_of_none_breaks_the_line(readings):
    readings.write(RUN, GPU, [*samples(100), *samples(100, start_s=START_S + 1000)])
    curve = readings.read(RUN, GPU, most_points=50)
    (gap,) = [place for place, power_w in enumerate(curve.power_w) if power_w is None]
    assert START_S + 100 < curve.time_s[gap] < START_S + 1000
    assert len(curve.time_s) <= 50


def _bytes(store):
    return "x'00'" if isinstance(store, SqliteStore) else "'\\x00'"


@pytest.mark.parametrize("count", [3, 30])
def test_a_damaged_block_hides_no_other(store, count):
    readings = store.readings()
    readings.write(RUN, GPU, samples(count * BLOCK))
    where = f"coarse = {_bytes(store)}, detail = {_bytes(store)} WHERE number = 1"
    assert store.tables.change(f"UPDATE readings SET {where}", {}) == 1
    curve = readings.read(RUN, GPU, most_points=1000)
    assert curve.damaged == 1
    assert len([power_w for power_w in curve.power_w if power_w is not None]) > 500
    assert curve.time_s[0] < START_S + 100 < START_S + (count - 1) * BLOCK < curve.time_s[-1]


def test_a_writer_leaves_a_damaged_block_alone_and_begins_the_next(store):
    store.readings().write(RUN, GPU, samples(10))
    store.tables.change(f"UPDATE readings SET detail = {_bytes(store)}", {})
    again = Readings(store.tables)
    again.write(RUN, GPU, samples(10, start_s=START_S + 10))
    curve = again.read(RUN, GPU)
    assert (curve.damaged, len(curve.time_s)) == (1, 10)


def test_gpus_and_runs_are_kept_apart_and_forgotten_one_by_one(readings):
    readings.write(RUN, "GPU-2", samples(5))
    readings.write(RUN, "GPU-1", samples(5))
    readings.write("other", "GPU-3", samples(5))
    assert readings.gpus(RUN) == ["GPU-1", "GPU-2"]
    assert readings.written_s(RUN) > START_S
    assert readings.forget(RUN) == 2
    assert (readings.gpus(RUN), readings.written_s(RUN)) == ([], None)
    assert readings.gpus("other") == ["GPU-3"]
    readings.write(RUN, "GPU-1", samples(3))  # begun anew, with what was before as if it had never been
    assert len(readings.read(RUN, "GPU-1").time_s) == 3


def test_a_name_with_any_letters_is_a_name(readings):
    for name in ("<script>alert(1)</script>", "a/../b", "'; DROP TABLE readings; --", "%", "ä±"):
        readings.write(name, GPU, samples(2))
        assert readings.gpus(name) == [GPU]
        assert len(readings.read(name, GPU).time_s) == 2


def test_ten_million_readings_are_some_ten_thousand_rows_of_a_few_bytes_each(store):
    readings = store.readings()
    readings.write(RUN, GPU, samples(20 * BLOCK))
    assert blocks(store) == 20
    ((size,),) = store.tables.select("SELECT SUM(LENGTH(coarse) + LENGTH(detail)) FROM readings", {})
    assert size / (20 * BLOCK) < 12


_WRITER = """
import sys
from joulewise.store import Sample, open_store
readings = open_store(sys.argv[1]).readings()
for place in range(100_000):
    readings.write("doomed", "GPU-1", [Sample(1.75e9 + 10 * place + n, 300.0 + n) for n in range(10)])
    if place == 20:
        print("ready", flush=True)
"""


def test_a_writer_that_is_killed_loses_only_what_it_had_not_written(tmp_path):
    url = str(tmp_path / "a.db")
    with started(_WRITER, url, stdout=subprocess.PIPE) as doomed:
        assert doomed.stdout.readline() == "ready\n"
        doomed.send_signal(signal.SIGKILL)
    store = open_store(url)
    curve = store.readings().read("doomed", GPU, most_points=100_000)
    assert len(curve.time_s) >= 210
    assert len(curve.time_s) % 10 == 0  # whole writes only
    assert curve.power_w == pytest.approx([300.0 + n % 10 for n in range(len(curve.time_s))], abs=0.01)
    store.readings().write("doomed", GPU, [Sample(2e9, 1.0)])  # and another goes on
    assert store.readings().read("doomed", GPU, most_points=100_000).power_w[-1] == pytest.approx(1.0)
    store.close()


def test_a_full_disk_is_said_and_costs_nothing_that_was_kept(tmp_path):
    database = Database(tmp_path / "joulewise.db")
    store = SqliteStore(database)
    readings = store.readings()
    readings.write(RUN, GPU, samples(10))
    disk = FullDisk(database)
    disk.fill()
    late = samples(5 * BLOCK, start_s=START_S + 10)
    with pytest.raises(NotKept, match="full"):
        readings.write(RUN, GPU, late)
    assert len(readings.read(RUN, GPU, most_points=10_000).time_s) >= 10
    disk.make_room()
    readings.write(RUN, GPU, late)
    assert len(readings.read(RUN, GPU, most_points=10_000).time_s) == 10 + len(late)
    store.close()


def test_a_store_that_cannot_be_read_is_one_line_with_the_way_out(tmp_path):
    file = tmp_path / "joulewise.db"
    file.write_bytes(b"no database at all" * 100)
    readings = SqliteStore(Database(file)).readings()
    for call in (lambda: readings.read(RUN, GPU), lambda: readings.write(RUN, GPU, samples(2))):
        with pytest.raises(NotKept, match="move it away"):
            call()
