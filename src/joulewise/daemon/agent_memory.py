"""What an agent must not forget when it is killed: its accounts, the last declaration, and the highest epoch heard.

Two files in a folder that is root's alone, each replaced as a whole, so that a reader finds one state or the next and
never a part. Settings are not here: the daemon keeps what was there before a lease, and gives it back by itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from joulewise.cluster.declared import Declared
from joulewise.core.errors import BadSpec, JoulewiseError, NotKept
from joulewise.core.knob import Setting
from joulewise.core.plain import built, plain
from joulewise.daemon.agent_accounts import Accounts

STATE: Final = Path("/var/lib/joulewise-agent")
_ACCOUNTS, _HEARD = "accounts.json", "declared.json"
_DAMAGED: Final = ".damaged"


@dataclass(frozen=True, slots=True)
class Heard:
    """The last word of the scheduler. ``firm`` is what each job had last that was firm: it stays in force while
    another setting is only prepared."""

    epoch: int = 0
    declared: Declared | None = None
    firm: Mapping[str, Setting] = field(default_factory=dict)


class Memory:
    """The folder. NotKept, with the way out, where it cannot be made or written."""

    def __init__(self, folder: Path = STATE) -> None:
        self.folder = folder
        self.problems: list[str] = []
        """What was found damaged, and put aside."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _not_kept(folder, error) from error

    def accounts(self, boot: str) -> Accounts:
        """As they were kept; new ones where there are none, or only damaged ones."""
        kept = self._read(_ACCOUNTS)
        if kept is not None:
            try:
                return Accounts.of(kept, boot)
            except BadSpec as error:
                self._put_aside(_ACCOUNTS, str(error))
        return Accounts(boot)

    def heard(self) -> Heard:
        """As it was kept; nothing where there is nothing, or only what is damaged."""
        kept = self._read(_HEARD)
        if kept is None:
            return Heard()
        try:
            epoch, firm = int(kept["epoch"]), {str(id): Setting(**values) for id, values in kept["firm"].items()}
            return Heard(epoch, None if kept["declared"] is None else built(Declared, kept["declared"]), firm)
        except (JoulewiseError, KeyError, TypeError, ValueError, AttributeError) as error:
            self._put_aside(_HEARD, f"{type(error).__name__}: {error}")
            return Heard()

    def keep_accounts(self, accounts: Accounts, *, firmly: bool = False) -> None:
        """Keep them over the death of this process; ``firmly``: over that of the machine, too."""
        self._write(_ACCOUNTS, accounts.kept(), firmly=firmly)

    def keep_heard(self, heard: Heard) -> None:
        """Keep it, over the death of the machine, too: an older scheduler must not be heard again."""
        firm = {id: dict(setting) for id, setting in heard.firm.items()}
        declared = None if heard.declared is None else plain(heard.declared)
        self._write(_HEARD, {"epoch": heard.epoch, "firm": firm, "declared": declared}, firmly=True)

    def _read(self, name: str) -> Any:
        try:
            return json.loads((self.folder / name).read_text("utf-8"))
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            self._put_aside(name, f"no JSON: {error}")
            return None
        except OSError as error:
            raise _not_kept(self.folder, error) from error

    def _put_aside(self, name: str, why: str) -> None:
        aside = self.folder / (name + _DAMAGED)
        try:
            (self.folder / name).replace(aside)
        except OSError as error:
            raise _not_kept(self.folder, error) from error
        self.problems.append(f"{self.folder / name} was damaged and is now {aside.name} ({why}); it begins anew")

    def _write(self, name: str, value: Any, *, firmly: bool) -> None:
        new = self.folder / f".{name}.new"
        try:
            with new.open("w", encoding="utf-8") as stream:
                json.dump(value, stream, allow_nan=False)
                if firmly:
                    stream.flush()
                    os.fsync(stream.fileno())
            new.replace(self.folder / name)
        except OSError as error:
            raise _not_kept(self.folder, error) from error


def _not_kept(folder: Path, error: OSError) -> NotKept:
    return NotKept(
        f"the agent cannot keep its accounts in {folder}: {(error.strerror or str(error)).lower()}; see --state"
    )
