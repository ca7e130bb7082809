"""What the daemon decides: who may do what, now. One thread, no waiting, no sockets.

``server`` brings it lines from clients whose identity the kernel vouches for; hardware calls go to ``station``s and
come back as callbacks; ``tenure`` lives the lives of leases. Tests drive it directly, on virtual time and with an
executor that has no threads.
"""

from __future__ import annotations

import resource
import sys
import time as clock
import traceback
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from joulewise.core.errors import (
    JoulewiseError,
    LeaseLost,
    NoGpu,
    NotNow,
    NotPermitted,
    NotSaved,
    Unsupported,
)
from joulewise.core.timeline import TimeSource
from joulewise.core.version import VERSION
from joulewise.daemon import rights, standing
from joulewise.daemon.audit import Audit
from joulewise.daemon.book import Book, Client, Held, Stage
from joulewise.daemon.debts import Debts
from joulewise.daemon.entitled import Entitled
from joulewise.daemon.grants import Grants
from joulewise.daemon.pace import Pace
from joulewise.daemon.policy import Policy
from joulewise.daemon.rights import Allowed
from joulewise.daemon.station import Station, Then
from joulewise.daemon.tenure import Answer, Tenure
from joulewise.daemon.timers import Timers
from joulewise.device import wire
from joulewise.device.controls import Controls
from joulewise.device.keeper import Keeper
from joulewise.device.lease import Notice
from joulewise.device.saved_lines import Entry
from joulewise.device.wire_requests import (
    Apply,
    Beat,
    End,
    Energy,
    Gpus,
    Hello,
    Leases,
    May,
    Quiet,
    Read,
    Release,
    Request,
    Stand,
    Status,
    Take,
)
from joulewise.device.wire_values import from_energy, from_notice, from_reading, from_restored

LOOK_AGAIN_S: Final = 10.0
"""How often a right that rests on running processes is looked at again: their list costs milliseconds."""
LATE_CHECK_S: Final = 0.5
"""How finely it is noticed that a driver call is late."""
_ROOM: Final = wire.MOST_BYTES - 4096
"""How long a list may grow before the rest is left for another request."""


class Service:
    """The daemon's mind. ``request`` for what clients say, ``gone`` when one leaves, ``tick`` as time passes."""

    def __init__(
        self,
        stations: Sequence[Station],
        *,
        policy: Policy,
        grants: Grants,
        audit: Audit,
        time: TimeSource,
        wall: Callable[[], float] | None = None,
        unix: Callable[[], float] = clock.time,
    ) -> None:
        """``time`` is the clock of leases (a simulator's, where one runs); ``wall`` of driver calls and polls."""
        self.policy = policy
        self.stopping = False
        self.connections: Callable[[], int] = lambda: 0
        """How many clients there are, for whoever serves them to tell."""
        self.version = VERSION
        self._stations = {station.uuid: station for station in stations}
        self._grants = grants
        self._audit = audit
        self._time = time
        self._now = time.now_s
        self._unix = unix
        self._speed = float(getattr(time, "speed", 1.0))
        self._wall_now = wall or time.now_s
        self._lives = Timers(self._now)
        self._wall = Timers(self._wall_now)
        self._book = Book()
        self._pace = Pace(policy.pace.writes_per_s, policy.pace.burst)
        self._tenure = Tenure(self._book, self._stations, self._lives, self._wall, self._now, self._note)
        self._entitled = Entitled(self._stations, self._book, grants, policy, self._tenure, self._wall.after, unix)
        self._debts = Debts(self._stations, self._book, audit, self._wall.after)
        self._polled: set[str] = set()
        self._gone: weakref.WeakSet[Client] = weakref.WeakSet()
        self._looked_s = self._wall_now()
        self._started_s = self._wall_now()
        self._counts = {"requests": 0, "refused": 0, "takes": 0, "applies": 0}

    # -- life of the daemon

    def start(self) -> None:
        """Give back what a daemon before us still owed, and begin to look after leased GPUs."""
        for station in self._stations.values():
            self._debts.settle(station.uuid)
        self._wall.after(self.policy.poll_s, self._poll)
        self._wall.after(LATE_CHECK_S, self._check_late)

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs that it looks after."""
        return tuple(self._stations)

    def add(self, station: Station) -> None:
        """Look after one more GPU, beginning with what is owed there; listed by their numbers."""
        self._stations[station.uuid] = station
        ordered = sorted(self._stations.items(), key=lambda item: item[1].index)
        self._stations.clear()
        self._stations.update(ordered)
        self._debts.settle(station.uuid)

    def owe(self, gpu: str, entries: Iterable[Entry], why: str) -> None:
        """A process before us has left this on ``gpu``; listed until it is given back."""
        self._debts.owe(gpu, entries, why)

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do ``act`` in ``delay_s`` wall seconds, in this thread."""
        self._wall.after(delay_s, act)

    def tick(self) -> None:
        """Do what has become due."""
        self._lives.run()
        self._wall.run()

    def due_in_s(self) -> float | None:
        """Wall seconds until the next ``tick`` has something to do; None if nothing is to come."""
        wall_s, life_s = self._wall.due_in_s(), self._lives.due_in_s()
        if life_s is None:
            return wall_s
        return life_s / self._speed if wall_s is None else min(wall_s, life_s / self._speed)

    def stop(self) -> None:
        """Take no more leases, end those there are and try once more what is owed; ``idle`` says when that is done."""
        self.stopping = True
        for held in self._book:
            self._tenure.end(held, "the daemon stops")
        self._debts.try_all()

    @property
    def idle(self) -> bool:
        """Whether no lease is left and no call is under way, but for those that hang."""
        return not len(self._book) and all(each.idle or each.health == "stalled" for each in self._stations.values())

    @property
    def restored(self) -> bool:
        """Whether no lease is left, and nothing that one of before had set."""
        return not len(self._book) and not self._book.owed

    @property
    def owed(self) -> tuple[str, ...]:
        """GPUs on which something is left of a process before us."""
        return tuple(self._book.owed)

    def set_policy(self, policy: Policy) -> None:
        """The site's rules have changed: leases that they no longer allow end."""
        self.policy = self._entitled.policy = policy
        self._pace = Pace(policy.pace.writes_per_s, policy.pace.burst)
        for station in self._stations.values():
            baseline, persistence = policy.baseline(station.uuid), policy.persistence

            def change(keeper: Keeper, baseline: Any = baseline, persistence: Any = persistence) -> None:
                keeper.baseline, keeper.persistence = baseline, persistence

            station.call(change, lambda _, __: None, must=True)
        self._entitled.review(look=True)

    # -- what clients say

    def request(self, client: Client, line: bytes) -> None:
        """One line of ``client``; the answer goes to its ``send``, now or later, exactly once."""
        self._counts["requests"] += 1
        client.pending += 1
        number: int | None = None
        request: Request | None = None

        def answer(said: Mapping[str, Any] | bytes | Exception) -> None:
            client.pending -= 1
            if not isinstance(said, Exception):
                assert number is not None
                client.send(wire.answer(number, said))
                return
            self._counts["refused"] += 1
            self._note_refusal(client, request, said)
            client.send(wire.error_line(number, said))

        try:
            obj = wire.parse_asked(line)
            number = wire.request_id(obj)
            request = wire.to_request(obj)
            self._dispatch(client, request, answer)
        except JoulewiseError as error:
            answer(error)
        except Exception:  # a fault of ours in one request shall not take the leases of all others with it
            traceback.print_exc()
            answer(JoulewiseError("the daemon could not do that, by a fault of its own; please report its log"))

    def gone(self, client: Client, why: str) -> None:
        """A client has died or hung up: what it held ends."""
        self._gone.add(client)
        self._book.forget_client(client)
        for held in self._book.of(client):
            self._tenure.end(held, why, tell=False)

    def refused(self, client: Client, why: str) -> None:
        """Write down that somebody tried what nobody does by accident."""
        self._audit.refuse(
            uid=client.uid, pid=client.pid, command=client.command, op="connection", why=why, result="refused"
        )

    def _dispatch(self, client: Client, request: Request, answer: Answer) -> None:
        match request:
            case Apply():
                self._counts["applies"] += 1
                self._tenure.apply(client, request, self._check_may_write, answer)
            case Read(gpu=gpu):
                self._station(gpu).join("read", _read, _relay(answer))
            case Energy(gpu=gpu):
                self._station(gpu).join("energy", _energy, _relay(answer))
            case Beat(lease=name):
                held = self._held(client, name)
                self._tenure.renew(held)
                answer({"ttl_s": held.ttl_s})
            case Take():
                self._take(client, request, answer)
            case Release(lease=name):
                self._release(self._tenure.owned(client, name), answer)
            case Quiet():
                self._quiet(client, request, answer)
            case Hello():
                answer(self._hello(client))
            case Gpus(after=after):
                answer(_page("gpus", [(uuid, each.described()) for uuid, each in self._stations.items()], after))
            case Leases(after=after):
                listed = [(each["lease"], wire.encoded(each)) for each in self._listed()]
                answer(_page("leases", listed, after))
            case May():
                self._may(client, request, answer)
            case End(lease=name, reason=reason):
                self._end(client, name, reason, answer)
            case Stand():
                self._stand(client, request, answer)
            case Status():
                _check_root(client, "status")
                answer(self._status())

    def _hello(self, client: Client) -> dict[str, Any]:
        return {
            "version": self.version,
            "uid": client.uid,
            "gid": client.gid,
            "pid": client.pid,
            "gpus": list(self._stations),
            "speed": self._speed,
        }

    def _listed(self) -> list[dict[str, Any]]:
        """All leases, with their end on the calendar if nothing is heard of their owners any more."""
        now = self._unix()
        listed = self._book.listed(self._now())
        return [{**each, "until_unix_s": round(now + each["left_s"] / self._speed, 3)} for each in listed]

    # -- take, apply, release

    def _take(self, client: Client, request: Take, answer: Answer) -> None:
        self._counts["takes"] += 1
        together, party = request.together, None

        def refuse(error: Exception) -> None:
            joining = party
            if joining is None and together is not None:
                joining = self._book.known_party(client.uid, together.name)
            if joining is not None:
                self._tenure.refuse_party(joining, str(error))
            answer(error)

        def go_on(allowed: dict[str, Allowed]) -> None:
            try:
                if client in self._gone:  # while we looked: nobody is left who could hold it
                    raise LeaseLost("its owner has gone meanwhile")
                self._check_ready()
                ttl_s = min(request.ttl_s, self.policy.ttl_most_s)
                self._tenure.take(client, request, allowed, party, ttl_s, answer)
                self._entitled.watch(allowed)
            except JoulewiseError as error:
                refuse(error)

        try:
            for gpu in request.gpus:
                missing = request.knobs - self._station(gpu).space.knobs.keys()
                if missing:
                    raise Unsupported(f"{min(missing)} cannot be set on {gpu}; see 'joulewise doctor'")
        except JoulewiseError as error:
            refuse(error)
            return
        party = self._tenure.party(client, together)  # who does not fit in stays out and does it no harm
        try:
            self._check_ready()
            self._book.check_free(request.gpus, request.knobs, self._now())
            for gpu in request.gpus:
                self._pace.spend(gpu, client.uid, self._wall_now())
            self._entitled.decide(client, request.gpus, request.knobs, go_on, refuse)
        except JoulewiseError as error:
            refuse(error)

    def _check_ready(self) -> None:
        if self.stopping:
            raise NotNow("the daemon is about to stop; try again when it has been started again", retry_s=5.0)
        if not self._audit.ok:
            raise NotSaved(f"{self._audit.problem}; nothing is set that cannot be written down")

    def _check_may_write(self, held: Held, gpus: tuple[str, ...]) -> None:
        """Whether a write may be done on ``gpus`` now: nobody asked for quiet, not too often, can be written down."""
        self._check_ready()
        now_s = self._now()
        for gpu in gpus:
            self._book.check_not_quiet(gpu, now_s)
        for gpu in gpus:
            self._pace.spend(gpu, held.owner.uid, self._wall_now())

    def _held(self, client: Client, name: str) -> Held:
        held = self._tenure.owned(client, name)
        self._tenure.check_not_ended(held)
        return held

    def _release(self, held: Held, answer: Answer) -> None:
        def released() -> None:
            answer({"why": held.why, "restored": [from_restored(each) for each in held.all_reports()]})

        def release() -> None:
            self._tenure.end(held, "released", then=released, tell=False)
            held.next_turn()

        held.in_turn(release)

    def _end(self, client: Client, name: str, reason: str, answer: Answer) -> None:
        _check_root(client, "end")
        held = self._book.get(name)
        if held is None:
            self._debts.try_lease(name, lambda given: answer({"restored": [from_restored(each) for each in given]}))
            return
        why = f"an administrator ended it: {reason or 'no reason given'}"
        self._note_act(client, "end", lease=name, gpu=",".join(held.gpus), why=reason)
        self._tenure.end(
            held, why, then=lambda: answer({"restored": [from_restored(each) for each in held.all_reports()]})
        )

    # -- what goes on meanwhile

    def _poll(self) -> None:
        self._wall.after(self.policy.poll_s, self._poll)
        now_s = self._wall_now()
        look = now_s - self._looked_s >= LOOK_AGAIN_S
        if look:
            self._looked_s = now_s
        self._entitled.review(look=look)
        for gpu in self._book.leased():
            if gpu not in self._polled and self._stations[gpu].health != "stalled":
                self._polled.add(gpu)
                self._stations[gpu].call(lambda keeper: keeper.look(), partial(self._seen, gpu))

    def _seen(self, gpu: str, notices: Iterable[Notice] | None, error: Exception | None) -> None:
        self._polled.discard(gpu)
        if error is not None:
            return  # the station shows it in its health
        for notice in notices or ():
            for held in self._book.on(gpu):
                if notice.knob is not None and notice.knob not in held.knobs:
                    continue
                self._note(
                    held, notice.kind, gpu=gpu, knob=notice.knob, before=notice.wrote, after=notice.found,
                    result=notice.says,
                )  # fmt: skip
                held.client.send(wire.line(from_notice(held.name, notice)))
                if notice.kind == "reload":
                    self._tenure.end(held, notice.says)

    def _check_late(self) -> None:
        self._wall.after(LATE_CHECK_S, self._check_late)
        for station in self._stations.values():
            station.tick()

    # -- quiet, stand, status

    def _quiet(self, client: Client, request: Quiet, answer: Answer) -> None:
        for gpu in request.gpus:
            self._station(gpu)
        if not request.for_s:
            if self._book.set_quiet(client, request.gpus, None, ""):
                self._note_act(client, "quiet", gpu=",".join(request.gpus), after=0.0)
            answer({})
            return

        def go_on(_: dict[str, Allowed]) -> None:
            self._book.set_quiet(client, request.gpus, self._now() + request.for_s, request.reason)
            self._note_act(client, "quiet", gpu=",".join(request.gpus), after=request.for_s, why=request.reason)
            answer({})

        for gpu in request.gpus:
            self._pace.spend(gpu, client.uid, self._wall_now())
        mine = {gpu for held in self._book.of(client) for gpu in held.gpus}
        others = tuple(gpu for gpu in request.gpus if gpu not in mine)
        if not others:
            go_on({})
            return
        # Whoever may not set anything on a GPU may not keep others from it either.
        self._entitled.decide(client, others, self._entitled.perhaps(client, others), go_on, answer)

    def _may(self, client: Client, request: May, answer: Answer) -> None:
        for gpu in request.gpus:
            self._station(gpu)
        for gpu in request.gpus:  # a look at a GPU takes milliseconds, as a write does
            self._pace.spend(gpu, client.uid, self._wall_now())
        self._entitled.may(client, request.gpus, lambda may: answer({"may": may}))

    def _stand(self, client: Client, request: Stand, answer: Answer) -> None:
        """Let clocks stand on all of the GPUs or on none."""
        _check_root(client, "stand")
        self._check_ready()
        for gpu in request.gpus:
            station = self._station(gpu)
            standing.check(station.space, request.setting, gpu)
            station.check_answers()
            self._book.check_not_quiet(gpu, self._now())

        def stood(error: Exception | None) -> None:
            if error is None:
                for gpu in request.gpus:
                    self._note_act(client, "stand", gpu=gpu, after=dict(request.setting))
            answer({} if error is None else error)

        standing.stand({gpu: self._stations[gpu] for gpu in request.gpus}, request.setting, stood)

    def _status(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "up_s": round(self._wall_now() - self._started_s, 3),
            "health": {uuid: station.health for uuid, station in self._stations.items()},
            "connections": self.connections(),
            "leases": len(self._book),
            "owed": sum(max(1, len(each.entries)) for each in self._book.owed.values()),
            "counts": dict(self._counts),
            "grants": len(self._grants.live()),
            "problems": [*self._grants.problems, *([self._audit.problem] if self._audit.problem else [])],
            "memory_bytes": _resident_bytes(),
            "descriptors": len(list(Path("/proc/self/fd").iterdir())),
            "cpu_s": sum(resource.getrusage(resource.RUSAGE_SELF)[:2]),
            "modules": sorted({name.partition(".")[0] for name in list(sys.modules)}),
        }

    # -- small things

    def _station(self, gpu: str) -> Station:
        station = self._stations.get(gpu)
        if station is None:
            raise NoGpu(f"the daemon knows no GPU {gpu}; it has {len(self._stations)}, see 'joulewise doctor'")
        return station

    def _note(self, held: Held, op: str, **fields: Any) -> None:
        """Write down what happened to a lease. What its owner says it is for, only once: it may be long."""
        owner = held.owner
        why = held.why if held.stage is Stage.ENDING else owner.reason if op == "take" else ""
        if why:
            fields["why"] = why
        if "gpu" not in fields:
            fields["gpu"] = ",".join(held.gpus)
        if "knob" not in fields:
            fields["knob"] = ",".join(sorted(held.knobs))
        self._audit.write(uid=owner.uid, pid=owner.pid, command=owner.command, lease=owner.lease, op=op, **fields)

    def _note_act(self, client: Client, op: str, **fields: Any) -> None:
        """Write down what somebody did that is not an act of a lease of theirs."""
        self._audit.write(uid=client.uid, pid=client.pid, command=client.command, op=op, **fields, result="ok")

    def _note_refusal(self, client: Client, request: Request | None, error: Exception) -> None:
        """Write down what was asked in vain; who only wanted to read has asked for nothing."""
        if isinstance(request, (Read, Energy)):
            return
        asked: dict[str, Any] = {}
        for name, field in _ASKED.items():
            value = getattr(request, name, None)
            if value:
                plain = isinstance(value, (str, float))
                asked[field] = value if plain else dict(value) if field == "after" else ",".join(sorted(value))
        self._audit.refuse(
            uid=client.uid, pid=client.pid, command=client.command,
            op="message" if request is None else type(request).__name__.lower(),
            **asked, result=f"{type(error).__name__}: {error}",
        )  # fmt: skip


_ASKED: Final = {
    "lease": "lease",
    "gpus": "gpu",
    "knobs": "knob",
    "setting": "after",
    "for_s": "after",
    "reason": "why",
}
"""Field of a request → what the audit log calls it."""


def _read(controls: Controls) -> bytes:
    return wire.encoded(from_reading(controls.read()))


def _energy(controls: Controls) -> bytes:
    return wire.encoded(from_energy(controls.energy()))


def _relay(answer: Answer) -> Then:
    """A callback that answers with what was read, or with what went wrong."""

    def then(result: Any, error: Exception | None) -> None:
        answer(result if error is None else error)

    return then


def _page(what: str, items: Sequence[tuple[str, bytes]], after: str | None) -> bytes:
    """As many of ``items`` (name, encoded) as fit into one line, from the one after ``after`` on; ``more`` if some are
    left. Encoded."""
    start = 0
    if after is not None:
        start = next((number for number, (name, _) in enumerate(items, 1) if name == after), len(items))
    size = 0
    page: list[bytes] = []
    for _, item in items[start:]:
        size += len(item) + 1
        if page and size > _ROOM:
            break
        page.append(item)
    more = b"true" if start + len(page) < len(items) else b"false"
    return b'{"%b":[%b],"more":%b}' % (what.encode("ascii"), b",".join(page), more)


def _check_root(client: Client, op: str) -> None:
    if client.uid != rights.ROOT:
        raise NotPermitted(f"{op} is for root, and the kernel says that you are uid {client.uid}; ask an administrator")


def _resident_bytes() -> int | None:
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * resource.getpagesize()
