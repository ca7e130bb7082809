"""What a run leaves behind for the next one."""

from types import SimpleNamespace
from typing import Any

import pytest

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
