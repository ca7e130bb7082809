"""GPUs and leases behind the daemon's socket: what a process without root's rights uses.

A lease has a connection of its own: it ends when the connection does, however that happens. A thread says from time to
time that we live. If the daemon dies, the lease is lost: the next daemon gives everything back when it starts.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from joulewise.core.errors import (
    BadSpec,
    GpuLost,
    JoulewiseError,
    LeaseLost,
    NoDaemon,
    NoGpu,
    NotPermitted,
    OutOfRange,
    Unsupported,
)
from joulewise.core.knob import DEFAULT, KNOBS, Setting
from joulewise.core.measurement import EnergyReading, Reading, SensorTiming
from joulewise.core.timeline import ScaledTime, TimeSource, WallTime
from joulewise.device import nvml_library
from joulewise.device.gpu import GpuInfo
from joulewise.device.lease import Applied, Ended, Notice
from joulewise.device.remote_client import DaemonClient
from joulewise.device.wire_values import to_energy, to_notice, to_reading, to_restored, to_space

__all__ = ["DaemonClient", "RemoteGpu", "RemoteLease"]

_BEATS_IN_TTL: Final = 3
"""So that one beat may be lost, and a second one be late."""
_ANY: Final = (-math.inf, math.inf)


class RemoteLease:
    """The right to turn knobs, held by the daemon for this process; made by ``take``. See ``lease.Lease``."""

    def __init__(
        self,
        client: DaemonClient,
        name: str,
        gpus: tuple[str, ...],
        allowed: Mapping[str, tuple[float, float]],
        notes: tuple[str, ...],
    ) -> None:
        """Not to be called: ``take`` asks the daemon first."""
        self._client = client
        self._name = name
        self._gpus = gpus
        self._allowed = allowed
        self._notes = notes
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._heard: list[Notice] = []
        self._ended: Ended | None = None
        self._stop = threading.Event()
        # Whoever drops a lease hangs up.
        self._finalizer = weakref.finalize(self, _let_go, client, self._stop, os.getpid())

    @classmethod
    def take(
        cls,
        gpus: Sequence[str],
        knobs: Collection[str] | None = None,
        *,
        ttl_s: float = 30.0,
        reason: str = "",
        socket: Path | None = None,
        together: tuple[str, int] | None = None,
    ) -> Self:
        """Take ``knobs`` (None: all that these GPUs have in common and we may set) of ``gpus``, all or none.

        It ends ``ttl_s`` after the last sign of life, which a thread gives. ``together`` (name, size) makes it one of
        a party that acts together or not at all. Raises NoDaemon, NotPermitted, LeaseTaken, NoGpu, Unsupported,
        NotNow, NotSaved, GpuStalled, GpuLost.
        """
        client = DaemonClient(socket)
        try:
            may = _may(client, gpus)
            chosen = sorted(set(may) or _common(client, gpus)) if knobs is None else sorted(set(knobs))
            party = None if together is None else {"name": together[0], "size": together[1]}
            taken = client.ask("take", gpus=list(gpus), knobs=chosen, ttl_s=ttl_s, reason=reason, together=party)
            allowed = {knob: may.get(knob, _ANY) for knob in chosen}
            lease = cls(client, taken["lease"], tuple(gpus), allowed, tuple(taken["notes"]))
        except BaseException:
            client.close()
            raise
        beat_s = taken["ttl_s"] / _BEATS_IN_TTL / client.hello.get("speed", 1.0)
        threading.Thread(
            target=_keep_beating,
            args=(weakref.ref(lease), lease._stop, beat_s),
            name=f"beat of {lease.name}",
            daemon=True,
        ).start()
        return lease

    @property
    def name(self) -> str:
        """As the daemon calls it."""
        return self._name

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs."""
        return self._gpus

    @property
    def knobs(self) -> frozenset[str]:
        """Names of the knobs it covers."""
        return frozenset(self._allowed)

    @property
    def allowed(self) -> Mapping[str, tuple[float, float]]:
        """How far the site let us set each knob when the lease was taken."""
        return self._allowed

    @property
    def notes(self) -> tuple[str, ...]:
        """What the taker should know."""
        return self._notes

    @property
    def alive(self) -> bool:
        """Whether it still holds, as far as the daemon has told us."""
        if self._pid != os.getpid():
            return False
        self._hear()
        return self._ended is None

    def apply(self, setting: Setting = DEFAULT, *, gpus: Sequence[str] | None = None) -> Applied:
        """Set exactly ``setting``, on all GPUs of the lease (or those named) or on none."""
        for knob, value in setting.items():
            if not math.isfinite(value):  # JSON has no word for it
                raise OutOfRange(f"{knob}={value} is no number that could be set")
        said = self._ask("apply", setting=dict(setting), gpus=None if gpus is None else list(gpus))
        effective = {gpu: Setting(**values) for gpu, values in said["effective"].items()}
        return Applied(setting, effective, tuple(said["notes"]))

    def beat(self) -> None:
        """Say that we live."""
        self._ask("beat")

    def quiet(self, duration_s: float, reason: str = "") -> None:
        """No write on these GPUs for so long, by anybody; 0 ends it."""
        self._check()
        self._relay(lambda: self._client.ask("quiet", gpus=list(self._gpus), for_s=duration_s, reason=reason))

    def notices(self) -> tuple[Notice, ...]:
        """What has happened since the last call."""
        self._check_own()
        self._hear()
        with self._lock:
            heard, self._heard = tuple(self._heard), []
        return heard

    def release(self) -> Ended:
        """End it and give everything back; how that went. A lease that has ended already says how."""
        self._check_own()
        self._hear()
        if self._ended is None:
            try:
                said = self._client.ask("release", lease=self._name)
            except JoulewiseError as error:
                self._end(_lost(error))
            else:
                self._end(Ended(said.get("why", "released"), tuple(map(to_restored, said["restored"]))))
        self._finalizer()
        assert self._ended is not None
        return self._ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pid == os.getpid():  # a forked child that leaves the block leaves the lease alone
            self.release()

    def __repr__(self) -> str:
        return f"RemoteLease({self._name!r}, {', '.join(self._gpus)})"

    # -- inside

    def _ask(self, op: str, **fields: Any) -> dict[str, Any]:
        self._check()
        return self._relay(lambda: self._client.ask(op, lease=self._name, **fields))

    def _relay(self, ask: Any) -> dict[str, Any]:
        """Ask, and turn the loss of the daemon into the loss of the lease."""
        try:
            said: dict[str, Any] = ask()
        except NoDaemon as error:
            self._hear()
            self._end(_lost(error), notice=True)
            assert self._ended is not None
            raise LeaseLost(f"{self._name} is lost: {self._ended.why}") from None
        except LeaseLost as error:
            self._hear()
            self._end(Ended(str(error)))
            raise
        return said

    def _check_own(self) -> None:
        if self._pid != os.getpid():
            raise LeaseLost(f"{self._name} belongs to process {self._pid}, which forked this one; take your own")

    def _check(self) -> None:
        self._check_own()
        if self._ended is not None:
            raise LeaseLost(f"{self._name} has ended: {self._ended.why}; take a new one")

    def _hear(self) -> None:
        """Take in what the daemon has said unasked."""
        try:
            events = self._client.events()
        except NoDaemon:
            events = []
        for event in events:
            if event.get("lease") != self._name:
                continue
            notice = to_notice(event)
            with self._lock:
                self._heard.append(notice)
            if notice.kind == "ended":
                self._end(Ended(notice.says, tuple(map(to_restored, event.get("restored", ())))))
        if self._client.broken is not None:
            self._end(_lost(NoDaemon(self._client.broken)), notice=True)

    def _end(self, ended: Ended, *, notice: bool = False) -> None:
        """Enter how it ended; the first word counts."""
        with self._lock:
            if self._ended is not None:
                return
            self._ended = ended
            if notice:
                self._heard.append(Notice("ended", ended.why))
        self._stop.set()


def _lost(error: JoulewiseError) -> Ended:
    if isinstance(error, NoDaemon):
        return Ended(f"{error}; what it had set is given back when a daemon starts, or by 'joulewise restore'")
    return Ended(str(error))


def _let_go(client: DaemonClient, stop: threading.Event, pid: int) -> None:
    if pid == os.getpid():
        stop.set()
        client.close()


def _keep_beating(lease: weakref.ref[RemoteLease], stop: threading.Event, beat_s: float) -> None:
    """Say from time to time that we live, until the lease has ended or nobody has it any more."""
    while not stop.wait(beat_s):
        held = lease()
        if held is None:
            return
        try:
            held.beat()
        except JoulewiseError:
            if held._ended is not None:
                return
        del held


def _common(client: DaemonClient, gpus: Sequence[str]) -> list[str]:
    """The knobs that all of ``gpus`` have. Unsupported if there are none."""
    spaces = [to_space(_described(client, gpu)["space"]) for gpu in gpus]
    found = [knob.name for knob in KNOBS if all(knob.name in space.knobs for space in spaces)]
    if not found:
        raise Unsupported("these GPUs have no knob in common that could be set; see 'joulewise doctor'")
    return found


def _may(client: DaemonClient, gpus: Sequence[str]) -> dict[str, tuple[float, float]]:
    """How far each knob may be set that may be set on all of ``gpus``; empty where that cannot be told."""
    try:
        each = [may.get("knobs", {}) for may in client.may(list(gpus)).values()]
    except JoulewiseError:  # what is wrong, taking the lease will tell
        return {}
    shared = [knob.name for knob in KNOBS if each and all(knob.name in knobs for knobs in each)]
    ranges = {name: (max(knobs[name][0] for knobs in each), min(knobs[name][1] for knobs in each)) for name in shared}
    return {name: (low, high) for name, (low, high) in ranges.items() if low <= high}


def _described(client: DaemonClient, uuid: str) -> dict[str, Any]:
    found = next((each for each in client.gpus() if each["uuid"] == uuid), None)
    if found is None:
        raise NoGpu(f"the daemon on {client.path} knows no GPU {uuid}; see 'joulewise doctor'")
    return found


class RemoteGpu:
    """One GPU, read through the daemon. Safe to read from several threads; a forked child opens a connection anew."""

    def __init__(self, uuid: str, *, socket: Path | None = None, client: DaemonClient | None = None) -> None:
        """NoDaemon if none answers, NoGpu if it does not know ``uuid``. A ``client`` that is given is not closed."""
        self._uuid = uuid
        self._own = client is None
        self._client = DaemonClient(socket) if client is None else client
        self._pid = os.getpid()
        try:
            said = _described(self._client, uuid)
            self._time = self._time_of()
            self._info = self._info_of(said)
        except BaseException:
            self.close()
            raise

    @classmethod
    def all(cls, socket: Path | None = None) -> list[RemoteGpu]:
        """Every GPU that the daemon knows."""
        with DaemonClient(socket) as client:
            uuids = list(client.hello["gpus"])
        return [cls(uuid, socket=socket) for uuid in uuids]

    @property
    def info(self) -> GpuInfo:
        """What does not change."""
        return self._info

    @property
    def time(self) -> TimeSource:
        """Wall time, or the simulator's."""
        return self._time

    def read(self) -> Reading:
        """One reading. GpuLost if the GPU or the daemon is gone."""
        return to_reading(self._ask("read"))

    def energy(self) -> EnergyReading:
        """The energy counter."""
        return to_energy(self._ask("energy"))

    def processes(self) -> tuple[int, ...] | None:
        """None: the daemon tells nobody what others run."""
        return None

    def close(self) -> None:
        """Hang up. Idempotent."""
        if self._own:
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RemoteGpu({self._uuid!r})"

    def _ask(self, op: str) -> dict[str, Any]:
        if self._pid != os.getpid():
            self._client, self._own, self._pid = DaemonClient(self._client.path), True, os.getpid()
        try:
            return self._client.ask(op, gpu=self._uuid)
        except NoDaemon as error:
            raise GpuLost(f"{self._uuid} cannot be read: {error}") from None
        except NotPermitted as error:
            raise GpuLost(f"{self._uuid} cannot be read any more: {error}") from None

    def _time_of(self) -> TimeSource:
        speed = float(self._client.hello.get("speed", 1.0))
        if nvml_library.is_virtual():
            return nvml_library.time_source()
        if speed == 1.0:
            return WallTime()
        return ScaledTime(speed, origin_s=self._client.ask("read", gpu=self._uuid)["time_s"])

    def _info_of(self, said: dict[str, Any]) -> GpuInfo:
        from joulewise.model import catalog  # it loads numpy, which a lease has no use for

        sensors, idle_power_w = SensorTiming(), None
        try:
            known = catalog.load(said["name"])
            sensors, idle_power_w = known.sensors, known.chip.idle_w
        except BadSpec:
            pass
        return GpuInfo(
            uuid=self._uuid,
            name=said["name"],
            index=said["index"],
            backend="remote",
            space=to_space(said["space"]),
            sensors=sensors,
            idle_power_w=idle_power_w,
            default_limit_w=said.get("default_limit_w"),
            driver=said.get("driver"),
            notes=(*said["notes"], "read through the daemon"),
        )
