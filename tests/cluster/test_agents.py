"""The desk: one decision on all nodes or on none; ceilings lowered first, raised after; silence counts at its most."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.cluster.agents import AgentDesk
from joulewise.cluster.declared import Declared, JobEnergy, Report, Share, ShareReport
from joulewise.core.knob import DEFAULT, Setting
from tests.tiers import examples

SLOW, FAST = Setting(sm_mhz=900), Setting(sm_mhz=1400)


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


@dataclass
class Agent:
    """Obeys whatever reaches it; ``states``: what it says of shares by id and version, ready unless told otherwise."""

    node: str
    clock: Clock
    held: Declared | None = None
    ceiling_w: float | None = None
    refuses: bool = False
    jobs: tuple[JobEnergy, ...] = ()

    def report(self) -> Report:
        held = self.held
        shares = () if held is None else held.shares
        states = tuple(
            ShareReport(each.id, each.version, *(("refused", "not here") if self.refuses else (_state(each),)))
            for each in shares
        )
        number = (0, 0) if held is None else (held.epoch, held.number)
        return Report(self.node, self.clock(), *number, 1000.0, 0.0, 0.0, (), states, self.jobs, self.ceiling_w)

    def obey(self, declared: Declared) -> None:
        if self.held is None or (declared.epoch, declared.number) > (self.held.epoch, self.held.number):
            self.held = declared
            self.ceiling_w = declared.ceiling_w

    def exchange(self, desk: AgentDesk) -> Declared:
        declared = desk.exchange(self.report())
        self.obey(declared)
        return declared


def _state(share: Share) -> str:
    return "applied" if share.firm else "ready"


def rig(*names: str) -> tuple[Clock, AgentDesk, list[Agent]]:
    clock = Clock()
    desk = AgentDesk(now=clock)
    desk.lead(1)
    return clock, desk, [Agent(name, clock) for name in names]


def passes(clock: Clock, desk: AgentDesk, seconds: float, *told: Agent) -> None:
    """Time passes as it does under a scheduler that looks every second; ``told`` report meanwhile."""
    until_s = clock.s + seconds
    while clock.s < until_s:
        clock.s = min(until_s, clock.s + 1.0)
        for agent in told:
            agent.exchange(desk)
        desk.silent_s("a")


def share(version: int, setting: Setting = SLOW) -> Share:
    return Share("bert", "17", setting, version)


def test_on_one_node_a_share_is_firm_at_once_and_nothing_new_is_the_same_declaration() -> None:
    _, desk, (agent,) = rig("a")
    desk.declare({"a": [share(1)]})
    assert desk.newer("a", 0, 0)
    first = agent.exchange(desk)
    assert first.shares == (share(1),)
    assert not desk.newer("a", first.epoch, first.number)
    assert agent.exchange(desk) is first
    assert desk.applied("17", 1)
    desk.declare({"a": [share(2, FAST)]})
    assert desk.newer("a", first.epoch, first.number)
    assert agent.exchange(desk).number == first.number + 1


def test_on_several_nodes_it_is_firm_when_all_are_ready() -> None:
    _, desk, (a, b) = rig("a", "b")
    desk.declare({"a": [share(1)], "b": [share(1)]})
    assert not a.exchange(desk).shares[0].firm
    assert not b.exchange(desk).shares[0].firm
    assert not a.exchange(desk).shares[0].firm  # a is ready now, b has not said so yet
    assert b.exchange(desk).shares[0].firm
    assert a.exchange(desk).shares[0].firm
    assert not desk.applied("17", 1)
    a.exchange(desk), b.exchange(desk)
    assert desk.applied("17", 1)


def test_when_one_node_refuses_all_go_back_to_the_last_firm_setting_and_it_is_said() -> None:
    _, desk, (a, b) = rig("a", "b")
    desk.declare({"a": [share(1)], "b": [share(1)]})
    for _ in range(3):
        a.exchange(desk), b.exchange(desk)
    desk.declare({"a": [share(2, FAST)], "b": [share(2, FAST)]})
    a.exchange(desk), b.exchange(desk)
    b.refuses = True
    for _ in range(3):
        a.exchange(desk), b.exchange(desk)
    assert a.exchange(desk).shares == b.exchange(desk).shares == (share(1),)
    (refusal,) = desk.refusals()
    assert (refusal.job, refusal.version, refusal.node, refusal.why) == ("bert", 2, "b", "not here")


def test_one_that_does_not_answer_takes_a_decision_back_but_one_whose_gpus_are_not_claimed_does_not() -> None:
    clock, desk, (a, b) = rig("a", "b")
    desk.declare({"a": [share(1)], "b": [share(1)]})
    a.exchange(desk)
    waiting = replace(b.report(), shares=(ShareReport("17", 1, "waiting"),))
    for _ in range(20):
        clock.s += 1.0
        a.exchange(desk)
        b.obey(desk.exchange(replace(waiting, time_s=clock.s)))
        assert not desk.refusals()
    assert desk.unclaimed() == {"17": ("b",)}
    desk.declare({"a": [share(2)], "b": [share(2)]})
    assert not desk.unclaimed()
    a.exchange(desk)
    passes(clock, desk, desk.lost_s + 0.1)
    assert a.exchange(desk).shares[0] == Share("bert", "17", DEFAULT, 0)
    assert "node b has not answered" in desk.refusals()[0].why


def test_what_a_node_has_applied_was_firm_under_the_scheduler_before() -> None:
    clock, desk, (a, b) = rig("a", "b")
    desk.declare({"a": [share(7)], "b": [share(7)]})
    for _ in range(3):
        a.exchange(desk), b.exchange(desk)
    again = AgentDesk(now=clock)
    again.lead(2)
    again.declare({"a": [share(7)], "b": [share(7)]})
    answer = a.exchange(again)
    assert (answer.epoch, answer.shares) == (2, (share(7),))


MOST_TWO = {"a": 3000.0, "b": 3000.0}


def two_under_a_cap() -> tuple[Clock, AgentDesk, Agent, Agent]:
    """Two nodes that hold 1 kW each of 2 kW."""
    clock, desk, (a, b) = rig("a", "b")
    desk.declare({}, {"a": 1000.0, "b": 1000.0}, room_w=2000.0, most_w=MOST_TWO)
    for _ in range(2):
        clock.s += 1.0
        a.exchange(desk), b.exchange(desk)
    assert (a.ceiling_w, b.ceiling_w) == (1000.0, 1000.0)
    return clock, desk, a, b


def test_a_report_of_a_declaration_that_was_never_sent_is_not_heard_and_raises_nobodys_ceiling() -> None:
    clock, desk, a, b = two_under_a_cap()
    desk.declare({}, {"a": 1900.0, "b": 100.0}, room_w=2000.0, most_w=MOST_TWO)
    clock.s += 1.0
    for number in (10**9, 2**53):
        desk.exchange(replace(b.report(), number=number, ceiling_w=0.0))  # somebody else, under b's name
        assert "node b tells of declaration" in desk.doubts()["b"]
        a.exchange(desk)
        assert a.ceiling_w == 1000.0  # b still holds the other thousand
    # The real one is heard as ever, and its numbers go on from where they were.
    before = b.held
    b.exchange(desk)
    assert before is not None
    assert b.held is not None
    assert b.held.number == before.number + 1
    b.exchange(desk)
    assert not desk.doubts()
    a.exchange(desk)
    assert (a.ceiling_w, b.ceiling_w) == (1900.0, 100.0)


def test_an_agent_that_follows_a_later_epoch_is_said_and_counts_as_one_that_says_nothing() -> None:
    clock, desk, a, b = two_under_a_cap()
    for _ in range(6):
        clock.s += 1.0
        a.exchange(desk)
        desk.exchange(replace(b.report(), epoch=2**53))
    assert "follows epoch 9007199254740992, this scheduler is epoch 1" in desk.doubts()["b"]
    assert desk.silent_s("b") > desk.lost_s
    assert desk.in_force_w("b") == 3000.0
    b.exchange(desk)
    assert not desk.doubts()
    assert desk.heard("b")


def test_one_that_was_never_believed_was_never_heard() -> None:
    clock, desk, _ = rig("a")
    passes(clock, desk, desk.lost_s + 1.0)
    desk.exchange(Report("a", clock(), 9, 1, 1000.0, 0.0, 0.0))
    assert desk.latest("a") is None
    assert desk.silent_s("a") == desk.lost_s + 1.0


def test_where_this_process_stood_still_or_its_clock_was_set_nobody_is_silent_for_it() -> None:
    clock, desk, a, b = two_under_a_cap()
    c = Agent("c", clock)
    c.exchange(desk)
    passes(clock, desk, desk.lost_s + 1.0, a, b)
    assert (desk.heard("a"), desk.heard("b"), desk.heard("c")) == (True, True, False)
    clock.s += 10.0
    assert (desk.silent_s("a"), desk.silent_s("b")) == (0.0, 0.0)
    assert not desk.heard("c")  # it was silent before
    assert desk.in_force_w("b") == 1000.0
    passes(clock, desk, desk.lost_s - 0.5, a)
    assert desk.heard("b")
    passes(clock, desk, 1.0, a)
    assert not desk.heard("b")  # it has had its time since


def test_a_clock_that_is_set_back_does_not_hide_that_a_node_is_silent() -> None:
    clock, desk, a, b = two_under_a_cap()
    passes(clock, desk, 2.0, a)
    clock.s -= 3600.0
    assert desk.silent_s("b") == 2.0
    passes(clock, desk, desk.lost_s - 1.0, a)
    assert (desk.heard("a"), desk.heard("b")) == (True, False)
    b.exchange(desk)
    assert desk.silent_s("b") == desk.lost_s + 1.0  # its clock too was set back: the first report looks late
    clock.s += 1.0
    b.exchange(desk)
    assert desk.heard("b")


def test_to_a_desk_that_is_always_late_nodes_are_silent_in_the_end() -> None:
    clock, desk, *_ = two_under_a_cap()
    for _ in range(3):
        clock.s += desk.lost_s - 0.5
        desk.silent_s("a")
    assert not desk.heard("a")
    assert not desk.heard("b")
    assert desk.in_force_w("b") == 3000.0


def test_a_decision_is_not_taken_back_because_this_process_stood_still() -> None:
    clock, desk, (a, b) = rig("a", "b")
    desk.declare({"a": [share(1)], "b": [share(1)]})
    a.exchange(desk), b.exchange(desk)
    clock.s += 60.0
    assert not desk.refusals()
    for _ in range(3):
        clock.s += 1.0
        a.exchange(desk), b.exchange(desk)
    assert desk.applied("17", 1)


def test_a_node_whose_clock_was_set_back_is_heard_again_with_its_second_report() -> None:
    clock, desk, a, _ = two_under_a_cap()
    for number in range(8):
        clock.s += 1.0
        said = replace(a.report(), time_s=clock() - 30.0)
        desk.exchange(said)
        assert (desk.latest("a") is said) == (number > 0)
    assert desk.silent_s("a") == 0.0


def test_an_agent_that_still_waits_for_its_answer_has_not_spoken_again() -> None:
    clock, desk, a, _ = two_under_a_cap()
    waits = a.report()
    desk.exchange(waits)
    passes(clock, desk, 2.0)
    desk.exchange(waits)
    assert desk.silent_s("a") == 2.0


def test_silence_is_counted_and_what_is_settled_is_named_to_whoever_still_tells_of_it() -> None:
    clock, desk, (a, _) = rig("a", "b")
    passes(clock, desk, 3.0)
    a.exchange(desk)
    clock.s += 2.0
    assert (desk.silent_s("a"), desk.silent_s("b")) == (2.0, 5.0)
    assert desk.heard("a")
    assert not desk.heard("b")
    a.jobs = (JobEnergy("17", 5.0, 0.0, 1.0, final=True),)
    desk.declare({})
    assert a.exchange(desk).ended == ()
    desk.forget(["17"])
    assert a.exchange(desk).ended == ("17",)
    # A number that the engine has given to another job since is nobody's who is over.
    desk.declare({"a": [Share("new", "17")]})
    assert a.exchange(desk).ended == ()
    desk.declare({})
    assert a.exchange(desk).ended == ("17",)
    a.jobs = ()
    assert a.exchange(desk).ended == ()


def test_a_late_report_changes_nothing() -> None:
    clock, desk, (a,) = rig("a")
    desk.declare({}, {"a": 500.0}, room_w=500.0, most_w={"a": 4000.0})
    early = a.report()
    clock.s += 1.0
    a.exchange(desk)
    a.exchange(desk)
    assert desk.in_force_w("a") == 500.0
    desk.exchange(early)
    assert desk.in_force_w("a") == 500.0


def test_a_node_that_falls_silent_counts_with_the_most_that_it_can_draw() -> None:
    clock, desk, (a, b) = rig("a", "b")
    most = {"a": 4000.0, "b": 4000.0}
    desk.declare({}, {"a": 2000.0, "b": 2000.0}, room_w=4000.0, most_w=most)
    for _ in range(3):
        a.exchange(desk), b.exchange(desk)
    passes(clock, desk, desk.lost_s + 0.1, a)
    assert desk.in_force_w("b") == 4000.0
    desk.limit({"a": 3500.0, "b": 500.0}, room_w=4000.0, most_w=most)
    assert a.exchange(desk).ceiling_w == 2000.0  # no room to raise it while b may draw anything
    b.exchange(desk)
    assert b.ceiling_w == 500.0
    b.exchange(desk)
    assert a.exchange(desk).ceiling_w == 3500.0


NODES = ("a", "b", "c")
MOST = dict.fromkeys(NODES, 4000.0)


@pytest.mark.sampled
@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_whatever_agents_hear_and_when_ceilings_in_force_and_on_their_way_never_sum_to_more_than_the_room(
    data: st.DataObject,
) -> None:
    """Answers are delayed, lost and overtaken; reports arrive late; what is wanted changes all the time."""
    clock, desk, agents = rig(*NODES)
    room_w = 6000.0
    desk.declare({}, dict.fromkeys(NODES, 2000.0), room_w=room_w, most_w=MOST)
    for agent in agents:
        agent.ceiling_w = 2000.0
    on_their_way: list[tuple[Agent, Declared]] = []
    for _ in range(data.draw(st.integers(1, 40))):
        clock.s += 0.01
        match data.draw(st.sampled_from(["want", "report", "arrive", "lose"])):
            case "want":
                cuts = sorted(data.draw(st.lists(st.integers(0, 60), min_size=2, max_size=2)))
                parts = [cuts[0] * 100.0, (cuts[1] - cuts[0]) * 100.0, room_w - cuts[1] * 100.0]
                desk.limit(dict(zip(NODES, parts, strict=True)), room_w=room_w, most_w=MOST)
            case "report":
                agent = data.draw(st.sampled_from(agents))
                on_their_way.append((agent, desk.exchange(agent.report())))
            case "arrive" if on_their_way:
                agent, declared = on_their_way.pop(data.draw(st.integers(0, len(on_their_way) - 1)))
                agent.obey(declared)
            case "lose" if on_their_way:
                on_their_way.pop()
            case _:
                pass
        highest_w = 0.0
        for agent in agents:
            coming = [
                declared.ceiling_w
                for other, declared in on_their_way
                if other is agent
                and (agent.held is None or (declared.epoch, declared.number) > (agent.held.epoch, agent.held.number))
            ]
            highest_w += max(math.inf if each is None else each for each in (agent.ceiling_w, *coming))
        assert highest_w <= room_w + 1e-6
    # Left alone, every node comes to have what is wanted of it.
    for _ in range(4):
        for agent in agents:
            clock.s += 0.01
            agent.exchange(desk)
    assert {agent.node: agent.ceiling_w for agent in agents} == {node: desk.ceiling_w(node) for node in NODES}


@pytest.mark.sampled
@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_nodes_of_one_job_are_never_told_two_firm_versions_beyond_one_exchange_each(data: st.DataObject) -> None:
    clock, desk, agents = rig(*NODES)
    version = 1
    desk.declare({node: [share(version)] for node in NODES})
    for _ in range(data.draw(st.integers(1, 60))):
        clock.s += 0.01
        what = data.draw(st.sampled_from(["decide", "exchange", "refuse"]))
        if what == "decide":
            version += 1
            desk.declare({node: [share(version, FAST if version % 2 else SLOW)] for node in NODES})
        elif what == "refuse":
            agent = data.draw(st.sampled_from(agents))
            agent.refuses = not agent.refuses
        else:
            data.draw(st.sampled_from(agents)).exchange(desk)
        if data.draw(st.booleans()):
            # One exchange each to hear of a decision, one to answer, one to hear what came of it.
            for agent in 3 * agents:
                agent.exchange(desk)
            firm = {each.version for agent in agents if agent.held for each in agent.held.shares if each.firm}
            assert len(firm) == 1


def test_agents_keep_what_they_hold_until_a_new_scheduler_has_declared_something() -> None:
    _, desk, (a,) = rig("a")
    desk.declare({"a": [Share("job", "1", Setting(sm_mhz=900))]}, {"a": 700.0}, room_w=700.0, most_w={"a": 2000.0})
    held = a.exchange(desk)
    desk.lead(held.epoch + 1)
    assert not desk.newer("a", held.epoch, held.number)
    said = a.exchange(desk)
    assert (said.epoch, said.number) == (held.epoch, held.number)
    desk.declare({"a": []}, {"a": 600.0}, room_w=600.0, most_w={"a": 2000.0})
    assert desk.newer("a", held.epoch, held.number)
    assert a.exchange(desk).ceiling_w == 600.0
