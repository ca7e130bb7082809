"""The desk: one decision on all nodes or on none; ceilings lowered first, raised after; silence counts at its most."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.cluster.agents import AgentDesk
from joulewise.cluster.declared import Declared, JobEnergy, Report, Share, ShareReport
from joulewise.core.knob import DEFAULT, Setting

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
    desk.declare({"a": [share(2)], "b": [share(2)]})
    a.exchange(desk)
    clock.s += desk.lost_s + 0.1
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


def test_a_later_epoch_heard_from_an_agent_makes_this_desk_outdated() -> None:
    _, desk, (a,) = rig("a")
    a.exchange(desk)
    assert desk.outdated is None
    desk.exchange(replace(a.report(), epoch=5))
    assert desk.outdated == 5


def test_silence_is_counted_and_what_is_settled_is_named_to_whoever_still_tells_of_it() -> None:
    clock, desk, (a, _) = rig("a", "b")
    clock.s += 3.0
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
    clock.s += desk.lost_s + 0.1
    a.exchange(desk)
    assert desk.in_force_w("b") == 4000.0
    desk.limit({"a": 3500.0, "b": 500.0}, room_w=4000.0, most_w=most)
    assert a.exchange(desk).ceiling_w == 2000.0  # no room to raise it while b may draw anything
    b.exchange(desk)
    assert b.ceiling_w == 500.0
    b.exchange(desk)
    assert a.exchange(desk).ceiling_w == 3500.0


NODES = ("a", "b", "c")
MOST = dict.fromkeys(NODES, 4000.0)


@settings(max_examples=200, deadline=None)
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


@settings(max_examples=100, deadline=None)
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
