"""What a run leaves behind for the next one."""

from types import SimpleNamespace
from typing import Any

import pytest

from joulewise.core.block import Role, Rung
from joulewise.core.knob import Setting
from joulewise.tune.ending import Ending

HELD, BEFORE = Setting(power_limit_w=487.5), Setting(power_limit_w=500.0)


class Kept:
    """A memory that only takes notes."""

    def keep(self, learnt: Any, chosen: Any, verified: Any, proof: Any, refused: Any) -> None:
        self.chosen, self.verified = chosen, verified


@pytest.mark.parametrize("verified", [True, False])
def test_what_is_called_verified_is_the_setting_that_was_held_and_not_another_that_was_kept_before(
    verified: bool,
) -> None:
    belief = SimpleNamespace(learnt=lambda: "learnt")
    tuner = SimpleNamespace(
        answer=HELD, answer_verified=verified, kept=BEFORE, chosen=HELD, refused=frozenset(), belief=belief
    )
    lines: Any = SimpleNamespace(finest=lambda: [SimpleNamespace(phase="", tuner=tuner)])
    subject: Any = SimpleNamespace(ruler=None)
    recall: Any = Kept()
    Ending(subject, lines, None, recall)._keep(None)  # type: ignore[arg-type]
    assert (recall.chosen, recall.verified) == ({"": HELD}, {"": verified})


def test_the_gpu_may_be_given_back_before_anything_is_written() -> None:
    """A store that is locked must not keep a setting in force: what is measured last comes first, writing after it."""
    order: list[str] = []

    class Written(list[Any]):
        notes: tuple[str, ...] = ()

        def write(self, event: Any) -> None:
            order.append(type(event).__name__)

        def saw(self, event: Any) -> None:
            order.append(type(event).__name__)

        def note(self, note: str) -> None:
            pass

        def prove(self) -> None:
            return None

        seal = SimpleNamespace(facts={})
        decided: frozenset[Setting] = frozenset()

    class Measuring:
        ruler = SimpleNamespace(
            sampler=SimpleNamespace(time=SimpleNamespace(now_s=lambda: 1.0)), rung=Rung.UNKNOWN, says=""
        )
        switches = 0

        def block(self, observation: Any) -> str:
            order.append("measured")
            return "block"

    observation = SimpleNamespace(move=SimpleNamespace(role=Role.HOLD))
    line = SimpleNamespace(observation=observation, tuner=SimpleNamespace(says=""), phase="")

    class Phases(list[Any]):
        debt = SimpleNamespace(slowdown=0.0)

        def finest(self) -> list[Any]:
            return []

    subject: Any = Measuring()
    lines: Any = Phases([line])
    record: Any = Written()
    ending = Ending(subject, lines, record, Kept())  # type: ignore[arg-type]
    ending.on_measured = lambda: order.append("given back")
    ending.finish("stopped", ())
    assert order == ["measured", "given back", "Seen", "Finished"]
