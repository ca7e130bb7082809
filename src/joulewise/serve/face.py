"""What the dashboard is made from: the store's runs, clusters and series, the GPUs here, a folder of plans, prices.

One object, handed to each of its routers (``face_overview``, ``face_runs``, ``face_plans``, ``face_clusters``,
``face_events``). It only reads: nothing that is asked of these routes changes a store, a file or a GPU.
"""

from __future__ import annotations

import math
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from joulewise.core.errors import BadSpec, JoulewiseError
from joulewise.report.summaries import Summaries
from joulewise.report.worth import Carbon
from joulewise.serve.desks import Desks
from joulewise.serve.face_cluster_logs import ClusterLogs
from joulewise.serve.face_plan_folder import PlanFolder
from joulewise.serve.face_stories import Stories
from joulewise.serve.live import LiveGpus
from joulewise.store import Database, Store


@dataclass(frozen=True, slots=True)
class Worth:
    """What a kilowatt hour costs here and emits. BadSpec for what cannot be that."""

    kwh_price: float | None = None
    currency: str | None = None
    carbon_g_per_kwh: float | None = None
    carbon_source: str | None = None
    """Where that figure is from, and of when."""

    def __post_init__(self) -> None:
        for name, value in (("--kwh-price", self.kwh_price), ("--carbon-g-per-kwh", self.carbon_g_per_kwh)):
            if value is not None and not 0 <= value < math.inf:
                raise BadSpec(f"{name} {value:g} makes no sense; it must be 0 or more")

    @property
    def carbon(self) -> Carbon | None:
        """As reports have it; None where no factor was given."""
        return None if self.carbon_g_per_kwh is None else Carbon(self.carbon_g_per_kwh, self.carbon_source)


class Face:
    """Nothing of it is read before it is asked for. ``live``: None, or one without GPUs, reads none. ``plans``: the
    folder of plans; None: there is none."""

    def __init__(
        self, store: Store, *, live: LiveGpus | None = None, plans: Path | None = None, worth: Worth | None = None
    ) -> None:
        self.store = store
        self.live = LiveGpus(why="this server reads no GPU") if live is None else live
        self.worth = Worth() if worth is None else worth
        self.summaries = Summaries(store)
        self.stories = Stories(store)
        self.clusters = ClusterLogs(store)
        self.plans = PlanFolder(plans)
        self.desks = Desks(store)

    @property
    def flag(self) -> str:
        """What a command needs to find this store, with a space before it: nothing where it finds it by itself. Nor for
        a server, whose address may need a password: whoever looks has it in the environment."""
        file = self.store.tables
        if not isinstance(file, Database):
            return ""
        with suppress(JoulewiseError):  # a user without a home has none that would be found
            if file.path.absolute() == Database().path.absolute():
                return ""
        return f" --database {shlex.quote(str(file.path.absolute()))}"
