"""What leases and hardware must be after any history, said as plainly as it can be. Shares no code with the service.

A world of GPUs with three knobs each, loans of knobs to clients, and debts: what is owed to a knob when its loan ends.
The world knows nothing of files, threads, retries or messages; a restart of the daemon is just "all loans end".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

LIMIT, SM, MEMORY = "power_limit_w", "sm_mhz", "memory_mhz"
CLOCKS = (SM, MEMORY)
PARTY_S = 30.0
Range = tuple[float, float]


@dataclass
class Debt:
    """What one loaned knob goes back to."""

    before: float | None = None
    """The limit of before; None for clocks, which nobody can read."""
    ours: set[float] = field(default_factory=set)
    """Limits that we have written: found there, they are undone; anything else is somebody else's."""
    locked: bool = False
    """A clock that we hold locked."""
    touched: bool = False
    """A clock that we have written to at all, or that has got another base meanwhile."""
    perhaps: bool = False
    """A clock that we may have written to: the GPU was lost while we tried."""


@dataclass(eq=False)
class Party:
    """Loans that hold together or not at all."""

    name: str
    uid: int
    size: int
    until_s: float
    members: list[Loan] = field(default_factory=list)
    complete: bool = False
    failed: bool = False


@dataclass(eq=False)
class Loan:
    """One lease."""

    client: int
    uid: int
    gpus: tuple[str, ...]
    knobs: frozenset[str]
    ttl_s: float
    expires_s: float
    party: Party | None = None
    name: str = ""
    """What the service calls it; the world does not care."""
    ended: bool = False
    away: set[str] = field(default_factory=set)
    """GPUs whose knobs are not back."""
    settings: dict[str, Mapping[str, float]] = field(default_factory=dict)


class World:
    """The truth. Acts return the name of the error that must be answered, or None if there must be none."""

    def __init__(self, gpus: Iterable[str], default_w: float, *, baseline: Mapping[str, float], by_grant: int) -> None:
        self.now_s = 0.0
        self.default_w = default_w
        self.hardware: dict[str, dict[str, float | None]] = {
            gpu: {LIMIT: default_w, SM: None, MEMORY: None} for gpu in gpus
        }
        self.lost: set[str] = set()
        self.standing: dict[tuple[str, str], float] = {}
        self.debts: dict[tuple[str, str], Debt] = {}
        self.loans: list[Loan] = []
        self.parties: list[Party] = []
        self.quiet: dict[tuple[str, int], float] = {}
        self.grants: dict[str, tuple[tuple[str, ...], float]] = {}
        self.unsure: set[tuple[str, str]] = set()
        """Clocks that are either as they were or at their base."""
        self.missed: set[str] = set()
        """GPUs that were lost when a daemon started: what stands there is set again if something else is owed, too."""
        self.adrift: set[tuple[str, str]] = set()
        """Clocks whose base a reload has undone that nobody has noticed yet: set again the next time somebody looks."""
        self._baseline = baseline
        self._by_grant = by_grant
        """The one user whose rights are grants."""

    # What clients do.

    def take(
        self,
        client: int,
        uid: int,
        gpus: tuple[str, ...],
        knobs: frozenset[str],
        ttl_s: float,
        party: Party | None = None,
    ) -> set[str] | Loan:
        """A new loan, or why there is none: any of these is true. One that joins a party in vain takes it down."""
        refusals: set[str] = set()
        if any(gpu in loan.away and loan.knobs & knobs for gpu in gpus for loan in self.loans):
            refusals = {"LeaseTaken"}
        elif not self._may(uid, gpus):
            refusals = {"NotPermitted"}
        else:
            # What a daemon that is dead still owes is in nobody's hands, but not free either.
            if any((gpu, knob) in self.debts for gpu in gpus for knob in knobs):
                refusals.add("LeaseTaken")
            if self.lost & set(gpus):
                refusals.add("GpuLost")
        if refusals:
            if party is not None:
                self._fail(party)
            return refusals
        loan = Loan(client, uid, gpus, knobs, ttl_s, self.now_s + ttl_s, party, away=set(gpus))
        self.loans.append(loan)
        for gpu in gpus:
            for knob in knobs:
                self.debts[gpu, knob] = Debt(self.hardware[gpu][knob] if knob == LIMIT else None)
        if party is not None:
            party.members.append(loan)
            party.complete = len(party.members) == party.size
        return loan

    def apply(
        self, client: int, loan: Loan, setting: Mapping[str, float], gpus: tuple[str, ...], may: Mapping[str, Range]
    ) -> str | None:
        """Set it on all of ``gpus`` or on none; ``may`` is what this user may set."""
        if refusal := self.refused(client, loan):
            return refusal
        if loan.party is not None and not loan.party.complete:
            return "NotNow"
        if setting.keys() - loan.knobs:
            return "NotPermitted"
        if any(not may[knob][0] <= value <= may[knob][1] for knob, value in setting.items()):
            return "OutOfRange"
        if any(self.is_quiet(gpu) for gpu in gpus):
            return "NotNow"
        loan.expires_s = self.now_s + loan.ttl_s
        fails = any(gpu in self.lost and self._needed(gpu, loan.knobs, setting) for gpu in gpus)
        for gpu in gpus:
            if gpu in self.lost:
                for knob in setting.keys() & set(CLOCKS):
                    self.debts[gpu, knob].perhaps = True
                if not fails:
                    loan.settings[gpu] = setting
                continue
            self._set(gpu, loan.knobs, setting)
            if fails:  # what this lease had set there before
                self._set(gpu, loan.knobs, loan.settings.get(gpu, {}))
            else:
                loan.settings[gpu] = setting
        return "GpuLost" if fails else None

    def _needed(self, gpu: str, knobs: frozenset[str], setting: Mapping[str, float]) -> bool:
        """Whether the GPU must answer for this: clocks that are not locked and shall not be need nothing."""
        debts = [self.debts[gpu, knob] for knob in knobs]
        return LIMIT in knobs or bool(setting) or any(debt.locked or debt.perhaps for debt in debts)

    def _set(self, gpu: str, knobs: frozenset[str], setting: Mapping[str, float]) -> None:
        here = self.hardware[gpu]
        for knob in knobs:
            debt, value = self.debts[gpu, knob], setting.get(knob)
            if knob == LIMIT:
                if here[LIMIT] != debt.before and here[LIMIT] not in debt.ours:
                    debt.before, debt.ours = here[LIMIT], set()  # somebody else's: it is what comes back in the end
                here[LIMIT] = debt.before if value is None else value
                if value is not None:
                    debt.ours.add(value)
            elif value is not None:
                here[knob], debt.locked, debt.touched = value, True, True
            elif debt.locked:
                here[knob], debt.locked = self.base(gpu, knob), False

    def beat(self, client: int, loan: Loan) -> str | None:
        """The owner lives."""
        refusal = self.refused(client, loan)
        if refusal is None:
            loan.expires_s = self.now_s + loan.ttl_s
        return refusal

    def release(self, client: int, loan: Loan) -> str | None:
        """Give it back; one that is ending already is released as well."""
        refusal = self.refused(client, loan)
        if refusal is None or (loan in self.loans and loan.client == client):
            self.end(loan)
            return None
        return refusal

    def die(self, client: int) -> None:
        """A client goes, and all that it holds."""
        self.quiet = {key: until_s for key, until_s in self.quiet.items() if key[1] != client}
        for loan in [loan for loan in self.loans if loan.client == client]:
            self.end(loan)

    def refused(self, client: int, loan: Loan) -> str | None:
        """Why ``client`` may do nothing with ``loan``."""
        if loan not in self.loans:
            return "LeaseLost"
        if loan.client != client:
            return "NotPermitted"
        return "LeaseLost" if loan.ended else None

    def is_quiet(self, gpu: str) -> bool:
        """Whether somebody wants no write there."""
        return any(where == gpu and until_s > self.now_s for (where, _), until_s in self.quiet.items())

    def _may(self, uid: int, gpus: Iterable[str]) -> bool:
        if uid != self._by_grant:
            return True
        live = [where for where, until_s in self.grants.values() if until_s > self.now_s]
        return all(any(gpu in where for where in live) for gpu in gpus)

    # The end of a loan.

    def end(self, loan: Loan) -> None:
        """Everything back where its GPU answers; the rest stays owed. A party ends with its first member."""
        loan.ended = True
        for gpu in sorted(loan.away):
            if gpu not in self.lost or not any(self._owes(gpu, knob) for knob in loan.knobs):
                for knob in loan.knobs:
                    self._settle(gpu, knob)
                loan.away.discard(gpu)
        if not loan.away and loan in self.loans:
            self.loans.remove(loan)
        if loan.party is not None:
            self._fail(loan.party)

    def _owes(self, gpu: str, knob: str) -> bool:
        """Whether the GPU is needed to give it back: a clock that we never tried to set needs nothing."""
        debt = self.debts[gpu, knob]
        return knob == LIMIT or debt.touched or debt.perhaps

    def _fail(self, party: Party) -> None:
        if not party.failed:
            party.failed = True
            for member in list(party.members):
                self.end(member)

    def _settle(self, gpu: str, knob: str) -> None:
        """Pay one debt."""
        debt = self.debts.pop((gpu, knob))
        here = self.hardware[gpu]
        if knob == LIMIT:
            if here[LIMIT] in debt.ours:
                here[LIMIT] = debt.before
        elif debt.touched:
            here[knob] = self.base(gpu, knob)
        elif debt.perhaps:
            self.unsure.add((gpu, knob))

    def base(self, gpu: str, knob: str) -> float | None:
        """Where a clock is when nobody has it."""
        return self.standing.get((gpu, knob), self._baseline.get(knob))

    # What happens by itself, or by others.

    def pass_to(self, now_s: float) -> None:
        """Time passes: loans that nobody renewed end, parties that are not complete, rights that have run out."""
        self.now_s = now_s
        for loan in list(self.loans):
            if not loan.ended and (loan.expires_s <= now_s or not self._may(loan.uid, loan.gpus)):
                self.end(loan)
        for party in self.parties:
            if not party.complete and party.until_s <= now_s:
                self._fail(party)

    def stand(self, gpu: str, knob: str, value: float | None) -> None:
        """A clock gets another place to be when nobody has it, at once or when its loan ends."""
        stood = self.standing.pop((gpu, knob), None)
        if value is not None:
            self.standing[gpu, knob] = value
        debt = self.debts.get((gpu, knob))
        if debt is None:
            self.hardware[gpu][knob] = self.base(gpu, knob)
        elif stood is not None or value is not None:
            debt.touched = True

    def reload(self, gpu: str) -> None:
        """The driver starts anew: all is default, and what was before is no more."""
        for knob, value in ((LIMIT, self.default_w), (SM, None), (MEMORY, None)):
            self.hardware[gpu][knob] = value
            if (gpu, knob) in self.debts:
                # A clock's base, which the reload has undone, is owed to it.
                self.debts[gpu, knob] = Debt(value, touched=knob in CLOCKS)
        self.adrift |= {(gpu, knob) for knob in CLOCKS}

    def noticed(self, gpu: str) -> None:
        """The reload is noticed: the loans there end, and what stands stands again."""
        had_loans = [loan for loan in self.loans if gpu in loan.away]
        for loan in had_loans:
            self.end(loan)
        for knob in CLOCKS:
            if had_loans and (gpu, knob) not in self.debts and self.base(gpu, knob) is not None:
                self.hardware[gpu][knob] = self.base(gpu, knob)

    def answers_again(self, gpu: str) -> None:
        """A lost GPU is back: what is owed there is paid."""
        self.lost.discard(gpu)
        if gpu in self.missed:
            self.missed.discard(gpu)
            self.unsure |= {(gpu, knob) for where, knob in self.standing if where == gpu}
        for loan in [loan for loan in self.loans if loan.ended]:
            self.end(loan)
        for where, knob in list(self.debts):
            if where == gpu and not any(gpu in loan.away and knob in loan.knobs for loan in self.loans):
                self._settle(gpu, knob)

    def forgive(self, owed: Iterable[tuple[str, str]], names: Iterable[str]) -> None:
        """Drop what may have been written to a lost GPU and was not: it is neither ``owed`` nor in a listed lease.

        Whether a write that a lost GPU answered with "lost" was made is the driver's secret; both are right.
        """
        owed, names = set(owed), set(names)
        for loan in [loan for loan in self.loans if loan.ended and loan.name not in names]:
            if all(self._only_perhaps(gpu, knob) for gpu in loan.away for knob in loan.knobs):
                for gpu in sorted(loan.away):
                    for knob in loan.knobs:
                        self._settle(gpu, knob)
                self.loans.remove(loan)
        held = {(gpu, knob) for loan in self.loans for gpu in loan.away for knob in loan.knobs}
        for gpu, knob in list(self.debts):
            if (gpu, knob) not in held and (gpu, knob) not in owed and self._only_perhaps(gpu, knob):
                self._settle(gpu, knob)

    def _only_perhaps(self, gpu: str, knob: str) -> bool:
        return knob != LIMIT and not self.debts[gpu, knob].touched

    def orphaned(self) -> tuple[set[str], set[str]]:
        """GPUs on which something is owed since a daemon before this one: surely, and perhaps."""
        held = {(gpu, knob) for loan in self.loans for gpu in loan.away for knob in loan.knobs}
        orphans = {key: debt for key, debt in self.debts.items() if key not in held}
        surely = {gpu for (gpu, knob), debt in orphans.items() if knob == LIMIT or debt.touched}
        return surely, {gpu for gpu, _ in orphans}

    def restart(self) -> None:
        """The daemon dies and another starts: every loan ends, nobody is connected, what stands stands again."""
        for loan in list(self.loans):
            loan.party = None
            self.end(loan)
        for gpu, knob in list(self.debts):
            if not self._owes(gpu, knob):
                del self.debts[gpu, knob]
        self.loans.clear()
        self.quiet.clear()
        self.parties.clear()
        self.missed |= self.lost
        for (gpu, knob), value in self.standing.items():
            if gpu not in self.lost and (gpu, knob) not in self.debts:
                self.hardware[gpu][knob] = value
