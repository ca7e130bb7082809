"""Forged savings: honest runs stand, and no forgery gets a stronger label than it deserves. The bench makes all kinds;
here some of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="the signing library is not installed (pip install 'joulewise[sign]')")

from bench.siege.forgeries import (
    BLOCKS,
    FORGERIES,
    READINGS,
    REFUSED,
    RUN,
    Folder,
    examine,
    honest_runs,
    rank,
    unseen_change,
)
from joulewise.store import Database, SqliteStore
from joulewise.store.countersignature import SigningKey
from tests.scenario_table import Shown

HONEST = ["steady", "evaluations", "idle phases", "gap", "two GPUs", "no hooks"]
SAMPLE = [
    "joules of everything set × 0.6",
    "joules held × 0.94",
    "joules of one block × 0.5",
    "joules of all × 1.4",
    "joules of all and the total × 1.4",
    "seconds and joules held × 0.9",
    "a step more in every held block",
    "work at default × 0.9",
    "every other held block called a probe",
    "order of pairs turned",
    "a window left out, the hole closed",
    "the end left out",
    "the best block ten times",
    "a surer claim",
    "joules × 0.6, no readings",
    "joules × 0.6, no readings of what was held",
    "work × 1.1, no steps",
    "joules × 0.6, no steps",
    "readings of another run",
    "joules of everything set × 0.6, readings too",
    "readings too, signed by the forger",
    "signed by the forger as the watcher",
    "forged after the watcher signed",
    "the watcher's statement edited",
    "what the watcher signed of another run",
]
EXACTLY = {
    "joules × 0.6, no readings": BLOCKS,
    "work × 1.1, no steps": BLOCKS,
    "joules of everything set × 0.6, readings too": READINGS,
}
"""What these get, not only at most: without evidence nothing is refused."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    at = tmp_path_factory.mktemp("forgeries")
    return Folder(at, SigningKey.open(at / "forger.key"), SigningKey.open(at / "watcher.key"))


@pytest.fixture(scope="module")
def honest(folder: Folder) -> dict[str, Path]:
    return honest_runs(folder.at, 0, HONEST)


@pytest.mark.parametrize("kind", HONEST)
def test_an_honest_run_stands(kind: str, folder: Folder, honest: dict[str, Path]) -> None:
    case = folder.open(honest[kind], honest[kind])
    found = examine(case, key=False)
    case.store.close()
    case.other.close()
    assert found["problems"] == []
    assert rank(found["label"]) == (BLOCKS if kind in ("gap", "no hooks") else READINGS)
    if rank(found["label"]) == BLOCKS:
        assert found["readings"]["why_not"]


@pytest.mark.parametrize("what", SAMPLE)
def test_a_forgery_gets_no_label_that_it_does_not_deserve(
    what: str, folder: Folder, honest: dict[str, Path], scenario: Callable[..., Shown]
) -> None:
    shown = scenario("R32", f"forged: {what}", criterion="no stronger label than deserved")
    deserves, change = FORGERIES[what]
    without, with_key = folder.run(honest["steady"], honest["evaluations"], change)
    assert rank(without["label"]) <= deserves
    assert rank(with_key["label"]) == REFUSED, "the verifier's key has not signed this"
    assert without["countersigned"] is None
    if deserves == REFUSED:
        assert without["problems"]
    if what in EXACTLY:
        assert rank(without["label"]) == EXACTLY[what]
    shown.saw(str(without["label"] or f"refused: {without['problems'][0]}"))


def test_what_would_not_be_noticed_is_about_what_is_stated(folder: Folder, honest: dict[str, Path]) -> None:
    unseen, stated = unseen_change(folder, honest["steady"])
    assert 0.0 < stated < 0.04
    assert unseen < 1.25 * stated


@pytest.fixture
def signed(folder: Folder, honest: dict[str, Path]) -> Iterator[SqliteStore]:
    case = folder.open(honest["steady"], honest["steady"])
    case.sign(case.watcher)
    case.store.close()
    case.other.close()
    store = SqliteStore(Database(folder.at / "forged.db"))
    yield store
    store.close()


def test_an_honest_run_is_countersigned_by_whom_the_verifier_trusts(folder: Folder, signed: SqliteStore) -> None:
    from joulewise.cli.verify import examined

    events = [event for _, event in signed.journal(RUN).read()]
    trusting = examined(signed, RUN, events, trusted={folder.watcher.public: "watcher"})
    assert trusting["label"] == "countersigned by watcher"
    assert trusting["readings"]["complete"]
    others = examined(signed, RUN, events, trusted={folder.forger.public: "somebody"})
    assert others["label"] is None
    assert others["problems"] == ["no key that you named has countersigned this run"]
    nobody = examined(signed, RUN, events)
    assert (nobody["label"], nobody["untrusted"]) == ("checked against readings", [folder.watcher.public])
