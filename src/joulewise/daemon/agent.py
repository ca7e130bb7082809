"""The node's agent: makes a node be as the cluster's scheduler declares it, and tells what it sees and draws.

What it is: a loop without a network and without threads. ``hear`` takes in what the scheduler declares; ``look`` does
all that is to be done now, some times a second, and gives a report whenever one is due: each period, and at once when
something has changed. It holds one lease for each job that has claimed GPUs here (``agent_hands``), keeps the node
below its ceiling (``agent_ceiling``), and counts whose joules were drawn (``agent_accounts``). ``agent_link`` drives
it.

It keeps the last declaration when the scheduler is gone, over its own death, too: the ceilings of all nodes together
keep the cluster's cap. A scheduler of an older epoch is not heard.

What it is not: a policy; nor a writer of hardware, which the daemon is. Jobs do not talk to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from joulewise.cluster.declared import Declared, GpuReport, Report, Share, ShareReport
from joulewise.core.errors import JoulewiseError, NotKept, Unsupported
from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.measurement import Reading
from joulewise.daemon.agent_ceiling import Ceiling, GpuNow
from joulewise.daemon.agent_hands import Hands, Hold
from joulewise.daemon.agent_host import Host
from joulewise.daemon.agent_memory import Heard, Memory
from joulewise.daemon.claims import Claim, Claims
from joulewise.device.gpu import Gpu
from joulewise.device.saved_lines import boot_id

SAID_S: Final = 10.0
"""How long something that happened once is told: some reports, of which one may be lost."""
FIRMLY_S: Final = 60.0
"""How often accounts are kept over the death of the machine; over that of the process they are at every count."""
_KEPT: Final = 1.01
"""A ceiling counts as kept up to here: sensors show whole watts, and update at other times than ours."""
_OVER_S: Final = 1.0
"""How long the node may be above its ceiling before somebody is told: limits take some tenths of a second to act."""
_FADE: Final = 0.95
"""Of the peak of what nobody here can set, a look: it may come back at any time."""


class Agent:
    """One node. Not thread-safe. Times are seconds since 1970."""

    def __init__(
        self,
        node: str,
        gpus: Sequence[Gpu],
        *,
        hold: Hold,
        claims: Claims,
        host: Host,
        memory: Memory,
        now: Callable[[], float] = time.time,
        period_s: float = 1.0,
        boot: str | None = None,
    ) -> None:
        """``period_s`` holds until the scheduler declares another. NotKept if the memory cannot be read."""
        self.node = node
        self._gpus = {gpu.info.uuid: gpu for gpu in gpus}
        self._claims = claims
        self._host = host
        self._memory = memory
        self._now = now
        self._first_period_s = period_s
        self._accounts = memory.accounts(boot_id() if boot is None else boot)
        self._heard = memory.heard()
        spaces = {uuid: gpu.info.space for uuid, gpu in self._gpus.items()}
        self._hands = Hands(hold, spaces, claims.look, now)
        self._ceiling = Ceiling()
        self._held: tuple[Claim, ...] | None = None
        self._readings: dict[str, Reading] = {}
        self._lost: dict[str, str] = {}
        self._integrated: dict[str, tuple[float, float]] = {}
        self._found_w: dict[str, float] = {}
        """GPU → its limit without us."""
        self._peak_w: dict[str, float] = {}
        """GPU that cannot be set → what it drew lately at most."""
        self._over_since_s: float | None = None
        self._troubled: str | None = None
        self._troubled_w = 0.0
        self._said: dict[str, float] = {}
        self._states: tuple[ShareReport, ...] = ()
        self.changed = False
        """Whether the last look found or did something new."""
        self._news = False
        self._reported_s = -float("inf")
        self._firmly_s = now()
        for problem in memory.problems:
            self._say(problem)

    # -- what is heard

    def hear(self, declared: Declared) -> None:
        """What shall be so from now on. One for another node, of an older epoch or of an older number is ignored.

        Durable on return; where it cannot be kept that is told, and it holds all the same: a ceiling matters more.
        """
        heard = self._heard
        if declared.node != self.node:
            self._say(f"a declaration for node {declared.node} came to {self.node} and is ignored; see --node")
            return
        if declared.epoch < heard.epoch:
            self._say(f"a scheduler of epoch {declared.epoch} is ignored: epoch {heard.epoch} has taken over")
            return
        before = heard.declared
        if before is not None and declared.epoch == heard.epoch and declared.number <= before.number:
            return  # it is in force already, or was overtaken on its way
        if before != declared:
            firm = {share.id: heard.firm.get(share.id, DEFAULT) for share in declared.shares}
            firm |= {share.id: share.setting for share in declared.shares if share.firm}
            new = Heard(declared.epoch, declared, firm)
            self._keep(lambda: self._memory.keep_heard(new))
            self._heard = new
            self._news = True
        self._drop(declared.ended)
        if self._accounts.forget(declared.ended):
            self._keep(lambda: self._memory.keep_accounts(self._accounts))

    def _drop(self, ended: Collection[str]) -> None:
        """Jobs that are over for good hold nothing. Their epilogs take their claims, but an engine may lose one (a
        Slurm whose controller was away when the job ended), and the GPUs would be that job's for ever."""
        left = [claim.id for claim in self._claims.look() if claim.id in ended]
        for id in left:
            try:
                self._claims.drop(id)
            except JoulewiseError as error:
                self._say(f"job {id} is over, but its claim cannot be taken back: {error}")
        if left:
            self._count(self._claims.look())
            self._news = True

    @property
    def period_s(self) -> float:
        """How often to report when nothing happens."""
        return self._first_period_s if self._heard.declared is None else max(0.05, self._heard.declared.period_s)

    # -- what is done

    def look(self) -> Report | None:
        """Do what is to be done now. The report, if one is due."""
        now_s = self._now()
        claims = self._claims.look()
        due = now_s - self._reported_s >= self.period_s or now_s < self._reported_s
        changed = claims != self._held or self._news
        if claims != self._held:  # what was drawn until now is theirs who have held the GPUs until now
            self._count(claims)
        changed |= self._hands.keep(claims)
        ceiling_w = None if self._heard.declared is None else self._heard.declared.ceiling_w
        if ceiling_w is not None or due or changed:
            self._read()
        self._bring_about(now_s, claims, ceiling_w)
        for said in self._hands.news():
            self._say(said)
        states = self._share_states()
        changed |= states != self._states
        self._states, self._news, self.changed = states, False, changed
        if not (due or changed):
            return None
        self._reported_s = now_s
        self._count(claims)
        return self.report()

    def close(self) -> None:
        """Give all leases back, and keep what was drawn until now."""
        try:
            self._count(self._claims.look())
        finally:
            self._hands.release()

    def _count(self, claims: tuple[Claim, ...]) -> None:
        """Enter what was drawn since the last count, and keep it before anybody is told."""
        now_s = self._now()
        shown_j: dict[str, float] = {}
        for uuid, gpu in self._gpus.items():
            try:
                shown_j[uuid] = gpu.energy().energy_j
            except Unsupported:
                shown_j[uuid] = self._integrate(uuid, now_s)
            except JoulewiseError as error:
                self._lost[uuid] = str(error)
        holders = {gpu: claim.id for claim in claims for gpu in claim.gpus if gpu in self._gpus}
        host_j = self._host.drawn_j(self._accounts.time_s, now_s)
        self._accounts.count(now_s, shown_j, holders, host_j)
        firmly = claims != self._held or now_s - self._firmly_s >= FIRMLY_S
        if firmly:
            self._firmly_s = now_s
        self._keep(lambda: self._memory.keep_accounts(self._accounts, firmly=firmly))
        self._held = claims

    def _keep(self, write: Callable[[], None]) -> None:
        try:
            write()
        except NotKept as error:
            self._say(f"{error}; what is counted now is lost with this process")

    def _integrate(self, uuid: str, now_s: float) -> float:
        """A counter made of power readings, for a GPU that has none."""
        then_s, energy_j = self._integrated.get(uuid, (now_s, 0.0))
        reading = self._readings.get(uuid)
        power_w = 0.0 if reading is None or reading.power_w is None else reading.power_w
        energy_j += power_w * max(0.0, now_s - then_s)
        self._integrated[uuid] = (now_s, energy_j)
        return energy_j

    def _read(self) -> None:
        for uuid, gpu in self._gpus.items():
            try:
                reading = self._readings[uuid] = gpu.read()
            except JoulewiseError as error:
                self._lost[uuid] = str(error)
                self._readings.pop(uuid, None)
                continue
            self._lost.pop(uuid, None)
            if reading.power_limit_w is not None and "power_limit_w" not in self._hands.setting(uuid):
                self._found_w[uuid] = reading.power_limit_w

    def _bring_about(self, now_s: float, claims: tuple[Claim, ...], ceiling_w: float | None) -> None:
        """Apply what is declared, as far as the ceiling lets it."""
        wanted = {gpu: self._declared_for(claim) for claim in claims if claim.managed for gpu in claim.gpus}
        if ceiling_w is not None:
            now, other_w = self._as_they_are(wanted)
            held = self._ceiling.hold(ceiling_w, other_w, now)
            wanted |= held.settings
            self._judge(now_s, ceiling_w, lowest=held.lowest)
        else:
            self._ceiling.hold(None, 0.0, ())
            self._over_since_s = self._troubled = None
        self._hands.apply(wanted)

    def _declared_for(self, claim: Claim) -> Setting:
        """The setting of a job that is in force, or its default where that is refused."""
        setting = self._heard.firm.get(claim.id, DEFAULT)
        try:
            if self._hands.why_not(claim.id) is None:
                self._hands.check(claim.id, setting)
        except JoulewiseError:  # ``_share_states`` tells
            return DEFAULT
        return setting

    def _as_they_are(self, wanted: dict[str, Setting]) -> tuple[list[GpuNow], float]:
        """The GPUs that can be set, as they are now, and what all else on the node draws."""
        now: list[GpuNow] = []
        other_w = self._host.power_w or 0.0
        for uuid, gpu in self._gpus.items():
            reading, settable, info = self._readings.get(uuid), self._hands.settable(uuid), gpu.info
            limits = info.space.knobs.get("power_limit_w") if "power_limit_w" in settable else None
            clocks = info.space.knobs.get("sm_mhz") if "sm_mhz" in settable else None
            power_w = None if reading is None else reading.power_w
            most_w = self._most_w(uuid)
            if power_w is None:  # what cannot be seen counts with the most that it can draw
                power_w = most_w or 0.0
            if uuid not in wanted or (limits is None and clocks is None) or most_w is None:
                self._peak_w[uuid] = max(power_w, _FADE * self._peak_w.get(uuid, 0.0))
                other_w += self._peak_w[uuid]
                continue
            self._peak_w.pop(uuid, None)
            sm_mhz = None if reading is None else reading.sm_mhz
            idle_w = info.idle_power_w or 0.0
            now.append(GpuNow(uuid, power_w, idle_w, most_w, sm_mhz, limits, clocks, wanted[uuid]))
        return now, other_w

    def _most_w(self, uuid: str) -> float | None:
        """What a GPU can draw at most if nobody of ours sets it; None where nobody knows."""
        info = self._gpus[uuid].info
        limits = info.space.knobs.get("power_limit_w")
        known = (self._found_w.get(uuid), info.default_limit_w, None if limits is None else limits.high)
        return next((each for each in known if each is not None), None)

    def _judge(self, now_s: float, ceiling_w: float, *, lowest: bool) -> None:
        """Say so if the ceiling is not kept, and why it cannot be."""
        power_w = self.power_w
        if power_w is None or power_w <= _KEPT * ceiling_w:
            self._over_since_s = self._troubled = None
            return
        self._over_since_s = now_s if self._over_since_s is None else self._over_since_s
        if now_s - self._over_since_s < _OVER_S:
            return
        if self._troubled is not None and abs(power_w - self._troubled_w) < 0.05 * power_w:
            return  # said already
        self._troubled_w = power_w
        said = f"a ceiling of {ceiling_w:.0f} W cannot be kept: {power_w:.0f} W"
        refused = self._hands.refusals()
        if refused:
            said += f", since {refused[0]}"
        self._troubled = said if refused and not lowest else f"{said} at the lowest clocks" if lowest else said

    # -- what is told

    @property
    def power_w(self) -> float | None:
        """What the node draws now, as its sensors say; None where a GPU cannot be read."""
        powers = [None if (r := self._readings.get(uuid)) is None else r.power_w for uuid in self._gpus]
        known = [power_w for power_w in powers if power_w is not None]
        return None if len(known) < len(powers) else sum(known) + (self._host.power_w or 0.0)

    def report(self) -> Report:
        """How things are, as of the last look; its time is that of its energies, so that both give a power."""
        declared, counted_s = self._heard.declared, self._accounts.time_s
        holders = {gpu: claim.id for claim in self._held or () for gpu in claim.gpus}
        return Report(
            node=self.node,
            time_s=self._now() if counted_s is None else counted_s,
            epoch=0 if declared is None else declared.epoch,
            number=0 if declared is None else declared.number,
            power_w=self.power_w,
            node_j=self._accounts.node_j,
            idle_j=self._accounts.idle_j,
            gpus=tuple(
                GpuReport(
                    uuid,
                    None if (reading := self._readings.get(uuid)) is None else reading.power_w,
                    self._accounts.drawn_j(uuid),
                    self._hands.setting(uuid),
                    holders.get(uuid),
                )
                for uuid in self._gpus
            ),
            shares=self._states,
            jobs=self._accounts.jobs(),
            ceiling_w=None if declared is None else declared.ceiling_w,
            trouble=self._trouble(),
        )

    def _share_states(self) -> tuple[ShareReport, ...]:
        declared = self._heard.declared
        return () if declared is None else tuple(map(self._share_state, declared.shares))

    def _share_state(self, share: Share) -> ShareReport:
        def report(state: str, why: str = "") -> ShareReport:
            return ShareReport(share.id, share.version, state, why)

        claim = next((each for each in self._held or () if each.id == share.id), None)
        if claim is None:
            return report("waiting")
        if not claim.managed:
            return report("refused", f"the GPUs of job {share.id} were granted to its user, who sets them")
        if why := self._hands.why_not(share.id):
            return report("refused", why)
        try:
            self._hands.check(share.id, share.setting)
        except JoulewiseError as error:
            return report("refused", str(error))
        if not share.firm:
            return report("ready")
        in_force = all(share.setting.keys() <= self._hands.setting(gpu).keys() for gpu in claim.gpus)
        return report("applied" if in_force else "ready")

    def _trouble(self) -> tuple[str, ...]:
        now_s = self._now()
        self._said = {said: until_s for said, until_s in self._said.items() if until_s > now_s}
        standing = [f"{uuid} cannot be read: {why}" for uuid, why in self._lost.items()]
        if self._troubled:
            standing.append(self._troubled)
        if self._host.why:
            standing.append(self._host.why)
        return tuple(dict.fromkeys((*standing, *self._claims.problems, *self._hands.refusals(), *self._said)))

    def _say(self, said: str) -> None:
        if said not in self._said:
            self._news = True
        self._said[said] = self._now() + SAID_S
