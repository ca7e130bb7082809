"""What runs, and on what: the key under which joulewise remembers what it learnt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Workload:
    """A piece of training that recurs. Two runs with the same fingerprint may share what was learnt."""

    command: tuple[str, ...]
    """The command line, without what changes from run to run (output folders, seeds)."""
    gpu_name: str
    gpu_count: int = 1
    facts: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """What else tells this work from other work: batch size, precision, a hash of the script."""

    def fingerprint(self) -> str:
        """16 hex digits; stable over processes, machines and the order of ``facts``."""
        canonical = json.dumps(
            [list(self.command), self.gpu_name, self.gpu_count, dict(self.facts)],
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=True,
        )
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]
