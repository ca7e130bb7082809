"""Several processes write one stream, on either engine: nothing lost, nothing doubled, ids without holes."""

import pytest

from joulewise.store import open_store
from tests.store.writing import STREAM, wait_until, writer, written_by


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.xdist_group("postgresql"))])
def url(request, tmp_path):
    return str(tmp_path / "a.db") if request.param == "sqlite" else request.getfixturevalue("database_url")


@pytest.fixture
def journal(url):
    store = open_store(url)
    yield store.journal(STREAM)
    store.close()


def test_processes_that_start_at_once_on_an_empty_database_lose_and_double_nothing(url, journal):
    writers = [writer(url, number, 30) for number in range(3)]
    assert [each.wait(120) for each in writers] == [0, 0, 0]
    read = list(journal.read())
    assert [number for number, _ in read] == list(range(1, 91))
    for number in range(3):
        assert written_by(number, read) == [float(n) for n in range(30)]


def test_a_writer_that_is_killed_costs_the_others_nothing(url, journal):
    doomed, other = writer(url, 0, 100_000), writer(url, 1, 40)
    wait_until(lambda: len(written_by(0, list(journal.read()))) >= 10)
    doomed.kill()
    assert (doomed.wait(60), other.wait(120)) == (-9, 0)
    read = list(journal.read())
    assert [number for number, _ in read] == list(range(1, len(read) + 1))
    assert written_by(1, read) == [float(n) for n in range(40)]
    lasting = written_by(0, read)
    assert lasting == [float(n) for n in range(len(lasting))]
