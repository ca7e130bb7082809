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
    unseen,
)
from joulewise.cli.standing import label_lines
from joulewise.store import Database, SqliteStore
from joulewise.store.countersignature import SigningKey
from tests.scenario_table import Shown
from tests.tiers import sample

HONEST = [
    "steady",
    "short steps",
    "evaluations",
    "idle phases",
    "gap",
    "two GPUs",
    "no hooks",
    "resumed",
    "killed and resumed",
    "unused GPUs",
    "in step with the sensor",
    "nearly in step",
    "twenty times as fast",
]
WEAKER = ("gap", "no hooks", "killed and resumed", "in step with the sensor", "nearly in step")
"""Kinds of which too little was kept to check all blocks."""
DEPENDS = "twenty times as fast"
"""In real time a loaded machine may lose a reading."""
SAMPLE = [
    "joules of everything set × 0.6",
    "joules held × 0.94",
    "joules of one block × 0.5",
    "joules of all × 1.4",
    "joules at default × 1.06, set × 0.98",
    "joules of windows × 1.06, references × 1.04, set × 0.98",
    "a clock 500 times as fast, default × 1.2, set × 0.98",
    "a clock 250 times as fast, default × 1.1, set × 0.98",
    "a clock 500 times as fast, default × 1.5, nothing kept of how it ran",
    "virtual told as real",
    "another GPU's name",
    "signed late, a clock of its own",
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


class Honest(dict[str, Path]):
    """Kind → the store of an honest run of it, which is made when it is asked for."""

    def __init__(self, at: Path) -> None:
        super().__init__()
        self._at = at

    def __missing__(self, kind: str) -> Path:
        self.update(honest_runs(self._at, 0, [kind]))
        return self[kind]


@pytest.fixture(scope="module")
def honest(folder: Folder) -> Honest:
    return Honest(folder.at)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", sample(HONEST, 4, of="honest runs"))
def test_an_honest_run_stands(kind: str, folder: Folder, honest: dict[str, Path]) -> None:
    case = folder.open(honest[kind], honest[kind])
    found = examine(case, key=False)
    case.store.close()
    case.other.close()
    assert found["problems"] == []
    if kind != DEPENDS:
        assert rank(found["label"]) == (BLOCKS if kind in WEAKER else READINGS)
    if rank(found["label"]) == BLOCKS:
        assert found["readings"]["why_not"]


@pytest.mark.sampled
@pytest.mark.parametrize("what", sample(SAMPLE, 8, of="forgeries"))
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


@pytest.mark.sampled
@pytest.mark.parametrize("kind", sample(["steady", "short steps", "evaluations", "resumed"], 1, of="not noticed"))
def test_what_is_just_not_noticed_lies_within_what_is_printed(
    kind: str, folder: Folder, honest: dict[str, Path], scenario: Callable[..., Shown]
) -> None:
    shown = scenario("R32", f"forged until just not noticed: {kind}", criterion="within what verify prints")
    found = unseen(folder, honest[kind])
    assert {each.side for each in found} == {"set", "default", "both"}
    for each in found:
        assert not each.overstated
        assert 0.0 < each.tolerance < 0.06
        # The forged saving and the honest one lie on both sides of what the readings say, the honest one near it.
        assert each.change < 1.4 * each.tolerance
    most = max(found, key=lambda each: each.change)
    shown.saw(f"{100 * most.change:.1f} %, stated ± {100 * most.tolerance:.1f} %")


@pytest.mark.sampled
@pytest.mark.parametrize("kind", sample(["short steps", "evaluations"], 1, of="both sides"))
def test_both_sides_by_a_little_are_noticed_on_other_jobs(kind: str, folder: Folder, honest: dict[str, Path]) -> None:
    """Blocks at default are short, and each may be wrong by several per cent: together they may not."""
    _, change = FORGERIES["joules at default × 1.06, set × 0.98"]
    without, _ = folder.run(honest[kind], honest["steady"], change)
    assert without["label"] is None
    assert any("the blocks say " in problem for problem in without["problems"])


@pytest.mark.exhaustive  # a run in real time
def test_when_a_run_on_a_fast_clock_was_signed_is_said_not_to_be_known(folder: Folder, honest: dict[str, Path]) -> None:
    case = folder.open(honest[DEPENDS], honest[DEPENDS])
    case.sign(case.watcher)
    found = examine(case, key=True)
    case.store.close()
    case.other.close()
    assert found["label"] == "countersigned by watcher"
    assert found["countersigned"]["after_s"] is None
    assert any("when the run ended is not known" in line for line in label_lines(found))


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
