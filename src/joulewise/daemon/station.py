"""One GPU as the daemon works with it: a queue of calls, a time by which each must be back, and its health.

The driver may hang in any call. Nobody waits for it: after ``LATE_S`` whoever asked is told GpuStalled, the GPU is
"stalled" and takes no new work but restores, and when the call comes back at last its ``late`` undoes what it did.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from joulewise.core.errors import GpuLost, GpuStalled, JoulewiseError
from joulewise.daemon.peer import real_uid
from joulewise.daemon.rights import Seen
from joulewise.daemon.worker import Executor, Job
from joulewise.device import wire
from joulewise.device.controls import Controls
from joulewise.device.keeper import Keeper
from joulewise.device.wire_values import from_space

LATE_S: Final = 5.0
"""A driver call takes microseconds to tens of milliseconds, some hundreds when a GPU wakes up; one that takes this
long will not come back soon."""

Then: TypeAlias = Callable[[Any, Exception | None], None]
"""What to do with a result, or with what went wrong."""


class Station:
    """A GPU, its keeper once it is open, and the calls under way. All but the calls run in the deciding thread."""

    def __init__(
        self,
        controls: Controls,
        open_keeper: Callable[[Controls], Keeper],
        executor: Executor,
        wall: Callable[[], float],
        *,
        index: int = 0,
        driver: str | None = None,
        mig: Callable[[], bool] = lambda: False,
        thread: str | None = None,
    ) -> None:
        """``thread`` names the worker that makes its calls; None: one of its own."""
        self.controls = controls
        self.uuid = controls.uuid
        self.space = controls.space
        self.index = index
        self.driver = driver
        self._open_keeper = open_keeper
        self._keeper: Keeper | None = None
        self._executor = executor
        self._wall = wall
        self._thread = thread or controls.uuid
        self._mig = mig
        self._under_way: deque[tuple[Job, Then, Then | None]] = deque()
        self._late = 0
        self._lost = ""
        self._shut = ""
        self._joined: dict[str, list[Then]] = {}
        self._described: tuple[tuple[str, str], bytes] | None = None

    @property
    def health(self) -> str:
        """How it is: "ok", "stalled", "lost", or "unsafe" where nothing can be saved, so that nothing is set."""
        if self._late:
            return "stalled"
        if self._lost:
            return "lost"
        return "unsafe" if self._shut else "ok"

    @property
    def trouble(self) -> str:
        """Why it is not well, in words; empty if it is."""
        return self._lost or self._shut

    @property
    def idle(self) -> bool:
        """Whether no call is under way."""
        return not self._under_way

    def described(self) -> bytes:
        """For whoever asks what GPUs there are: an object, encoded, and that only when it has changed."""
        state = (self.health, self.trouble)
        if self._described is None or self._described[0] != state:
            self._described = (state, wire.encoded(self._describe()))
        return self._described[1]

    def _describe(self) -> dict[str, Any]:
        known: Mapping[str, Any] = {
            "uuid": self.uuid,
            "name": self.controls.name,
            "index": self.index,
            "space": from_space(self.space),
            "default_limit_w": self.controls.default_limit_w,
            "driver": self.driver,
            "health": self.health,
            "trouble": self.trouble or None,
            "notes": list(self.controls.notes),
        }
        return {name: value for name, value in known.items() if value is not None}

    def check_answers(self) -> None:
        """GpuStalled if a call hangs in the driver right now."""
        if self._late:
            raise GpuStalled(
                f"the driver has not answered for {self.uuid} for more than {LATE_S:g} s; other GPUs work, "
                "see 'dmesg | grep Xid'"
            )

    def call(self, call: Callable[[Keeper], Any], then: Then, *, late: Then | None = None, must: bool = False) -> None:
        """Let ``call`` run with this GPU's keeper, then ``then`` with its result here.

        ``late`` gets the result of a call that came back after ``then`` was told GpuStalled. One that ``must`` run
        (a restore) does so however late; any other is dropped if it has not begun by then, and refused while the
        GPU is stalled.
        """
        if not must:
            self.check_answers()
        self._submit(lambda: call(self._open()), then, late, must)

    def join(self, what: str, call: Callable[[Controls], Any], then: Then) -> None:
        """As ``call``, for what only looks: whoever asks for the same while it is under way shares its result.

        So however many ask, a GPU never has more than one such call of a kind in its queue. It needs no keeper, so
        it works where nothing can be saved.
        """
        self.check_answers()
        joined = self._joined.get(what)
        if joined is not None:
            joined.append(then)
            return
        self._joined[what] = [then]

        def share(result: Any, error: Exception | None) -> None:
            for each in self._joined.pop(what):
                each(result, error)

        self._submit(lambda: call(self.controls), share, None, False)

    def look_who(self, _: Controls) -> Seen:
        """Which processes of whom run here. In the worker: it takes milliseconds."""
        mig = self._mig()
        pids = self.controls.processes()
        if pids is None:
            return Seen(None, mig)
        whose = {pid: real_uid(pid) for pid in pids}
        if None in whose.values():
            # Gone since the driver listed them, so nobody's; or, if it lists them still, out of our sight.
            still = self.controls.processes()
            whose = {pid: uid for pid, uid in whose.items() if uid is not None or still is None or pid in still}
        return Seen(tuple((pid, -1 if uid is None else uid) for pid, uid in whose.items()), mig)

    def tick(self) -> None:
        """Tell those who wait for calls that are late."""
        due_s = self._wall() - LATE_S
        for job, then, _ in list(self._under_way):
            if job.since_s > due_s:
                break  # they are in the order in which they came
            if not job.late:
                job.late = True
                job.cancelled = not job.must
                self._late += 1
                then(None, GpuStalled(f"the driver took longer than {LATE_S:g} s on {self.uuid}; it will be undone"))

    def _submit(self, call: Callable[[], Any], then: Then, late: Then | None, must: bool) -> None:
        job = Job(self._thread, call, self._finished, self._wall(), must=must)
        self._under_way.append((job, then, late))
        self._executor.submit(job)

    def _open(self) -> Keeper:
        """In the worker: what fails is tried again by the next call."""
        if self._keeper is None:
            try:
                self._keeper = self._open_keeper(self.controls)
            except JoulewiseError as error:
                self._shut = str(error)
                raise
            self._shut = ""
        return self._keeper

    def _finished(self, job: Job) -> None:
        waiting, then, late = self._under_way.popleft()
        assert waiting is job
        if job.ran:
            self._lost = str(job.error) if isinstance(job.error, GpuLost) else ""
        if not job.late:
            then(job.result, job.error)
            return
        self._late -= 1
        if job.ran and late is not None:
            late(job.result, job.error)
