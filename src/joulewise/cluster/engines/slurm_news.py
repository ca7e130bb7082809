"""What happened at Slurm between two looks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from joulewise.cluster.engine import DONE, Happened, JobState, NodeState
from joulewise.cluster.engines.slurm_text import SlurmNode
from joulewise.cluster.engines.slurm_view import View


class SlurmNews:
    """Remembers one look, and says how the next differs. The very first tells nothing."""

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[JobState, int]] | None = None
        self._nodes: dict[str, NodeState] = {}

    def since(
        self, view: View, nodes: Sequence[SlurmNode], now_s: float, aimed: Collection[str], said: Mapping[int, str]
    ) -> tuple[Happened, ...]:
        """``aimed``: jobs that are under way to somewhere, so that they stop is no loss; ``said``: why others ended, by
        number."""
        before, self._jobs = (
            self._jobs,
            {name: (each.slurm.state, each.slurm.starts) for name, each in view.mine.items()},
        )
        nodes_before, self._nodes = self._nodes, {node.name: node.state for node in nodes}
        if before is None:
            return ()
        happened: list[Happened] = []
        for name, (state, starts) in self._jobs.items():
            was = before.get(name)
            says = view.mine[name].why
            if was is None:
                happened.append(Happened(now_s, "submitted", name))
            if was == (state, starts):
                continue
            if state == "running":
                happened.append(Happened(now_s, "started", name, says))
            elif state in DONE:
                happened.append(Happened(now_s, state, name, said.get(view.mine[name].slurm.id, says)))
            elif state == "waiting" and was is not None and was[0] != "waiting":
                happened.append(Happened(now_s, "stopped" if name in aimed else "lost", name, says))
        gone = [name for name, was in before.items() if name not in self._jobs and was[0] not in DONE]
        happened += [Happened(now_s, "lost", name, "Slurm knows it no more") for name in gone]
        turned = [node for node in nodes if node.state != nodes_before.get(node.name) and node.state != "booting"]
        happened += [Happened(now_s, node.state, node.name, node.why) for node in turned]
        return tuple(happened)
