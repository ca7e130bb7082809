"""Tests that bear no company run last, by themselves, in the same run of pytest as all others.

Those marked ``alone`` or ``stack`` keep several processes in step: the load of another test would be a finding to them.
They wait until every other worker of pytest-xdist has ended, what its tests shared included; the one that is left runs
them in their order.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

_GROUP: Final = "~alone"  # behind any other group of the same test, with which pytest-xdist joins it


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if bears_no_company(item):
            item.add_marker(pytest.mark.xdist_group(_GROUP))
    if getattr(config.option, "loadgroup", False):
        # What takes long begins first, so that no worker waits for another in the end.
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def bears_no_company(item: pytest.Item) -> bool:
    """Whether nothing may run beside it."""
    return any(item.get_closest_marker(mark) is not None for mark in ("alone", "stack"))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> AloneLast | None:
    """Ours for ``--dist loadgroup``, which alone tells groups."""
    return AloneLast(config, log) if config.getoption("dist") == "loadgroup" else None


class AloneLast(LoadGroupScheduling):
    """Groups as ever, but what bears no company only once one worker is left."""

    def _split_scope(self, nodeid: str) -> str:
        return _GROUP if nodeid.endswith(_GROUP) else str(super()._split_scope(nodeid))

    def _assign_work_unit(self, node: WorkerController) -> None:
        if _GROUP in self.workqueue:
            self.workqueue.move_to_end(_GROUP)
        if not self._only_alone() or self.nodes == [node]:
            super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if not self._only_alone():
            super()._reschedule(node)
        elif not node.shutting_down and node in self.registered_collections:
            if self.nodes == [node]:
                self._assign_work_unit(node)
                node.shutdown()  # once it has run all it was given
            elif node is not next(each for each in self.nodes if not each.shutting_down):
                node.shutdown()

    def remove_node(self, node: WorkerController) -> str | None:
        crashed = super().remove_node(node)
        for each in self.nodes:
            self._reschedule(each)
        return crashed

    def _only_alone(self) -> bool:
        """Whether nothing else waits for a worker."""
        return list(self.workqueue) == [_GROUP]
