"""The sentences of a cluster's report: its result, its tiles, what a manager should conclude, and what is known how."""

from __future__ import annotations

from joulewise.core.event import Aimed, Limited, Turned
from joulewise.core.knob import Setting
from joulewise.core.units import format_energy, format_si
from joulewise.report.cluster_facts import Amount, Cut, Story, Stretch, reference


def setting_words(setting: Setting) -> str:
    """What is set, for people."""
    words = {"sm_mhz": "{:g} MHz", "memory_mhz": "memory {:g} MHz", "power_limit_w": "at most {:g} W"}
    return ", ".join(words.get(name, name + " {:g}").format(value) for name, value in setting.items()) or "nothing set"


def percent(share: float) -> str:
    """A share in whole percents."""
    return f"{100.0 * share:.0f} %".replace("-", "−")


def cut_words(cut: Cut) -> str:
    """What came of one cut."""
    share = percent(1.0 - cut.cap_w / cut.was_w)
    says = f"From {format_si(cut.was_w, 'W')} to {format_si(cut.cap_w, 'W')} (−{share})"
    if cut.power.complied_s is None:
        return f"{says}: not kept while it was looked at, {format_energy(cut.power.overshoot_j)} above it"
    held = "and held" if cut.power.after_j <= 0 else f"then passed by {format_si(cut.power.above_w, 'W')} at most"
    return (
        f"{says}: kept after {cut.power.complied_s:.1f} s, {format_energy(cut.power.overshoot_j)} above it until then, "
        f"{held}; {format_si(cut.power.after_w, 'W')} on average afterwards"
    )


def headline(story: Story) -> str:
    """The result in one sentence."""
    jobs = _ended(story)
    saved = _best(story)
    if not story.cuts:
        return f"{jobs}; the cap was never cut"
    slow = [cut.power.complied_s for cut in story.cuts]
    known = [each for each in slow if each is not None]
    lowest = min(cut.cap_w for cut in story.cuts)
    shares = 1.0 - lowest / story.cuts[0].was_w
    kept = f"kept within {max(known):.1f} s" if len(known) == len(slow) else "not always kept"
    says = f"The cluster's power was cut by up to {percent(shares)}, {kept}; {jobs[0].lower() + jobs[1:]}"
    if saved is not None:
        stretch, ratio = saved
        less = percent(1.0 - ratio.value)
        says += f", and {stretch.job} took {less} fewer joules a step at {setting_words(stretch.setting)}"
    return says


def tiles(story: Story) -> list[tuple[str, str]]:
    """A few figures, each with what it is."""
    found = []
    known = [cut.power.complied_s for cut in story.cuts if cut.power.complied_s is not None]
    if story.cuts:
        slowest = f"{max(known):.1f} s" if len(known) == len(story.cuts) else "never"
        found.append((slowest, "until the cap was kept, the slowest of all cuts"))
        above_j = sum(cut.power.overshoot_j + cut.power.after_j for cut in story.cuts)
        found.append((format_energy(above_j), "above the cap, around all cuts"))
    resized, stopped = moved(story)
    found.append((str(resized), "times a job was resized"))
    found.append((str(stopped), "times a job had to wait"))
    found.append((format_energy(story.last.energy_j - story.watched[0].energy_j), "drawn by the whole cluster"))
    return found


def moved(story: Story) -> tuple[int, int]:
    """How often a job was resized, and how often one was stopped to go on later."""
    aims = [event for event in story.events if isinstance(event, Aimed)]
    resized = sum(1 for event in aims if event.what in ("resize", "migrate"))
    return resized, sum(1 for event in aims if event.what == "preempt")


def conclusions(story: Story) -> list[str]:
    """What a manager may take from it, and no more than was seen."""
    lines = []
    resized, stopped = moved(story)
    for cut in story.cuts:
        share = percent(1.0 - cut.cap_w / cut.was_w)
        if cut.power.complied_s is None:
            lines.append(f"The cut of {share} was not kept while it was looked at: do not promise it to anybody.")
        else:
            followed = _followed(story, cut)
            alone = "" if followed else ", by clocks alone"
            lines.append(f"A cut of {share} was kept after {cut.power.complied_s:.1f} s{alone}{followed}.")
    if resized and not stopped:
        lines.append("No job had to wait: those that were resized went on from their checkpoints.")
    elif stopped:
        lines.append(
            "A cut made a job wait, to go on later from its checkpoint: at their lowest clocks all were too many."
        )
    elif story.cuts:
        lines.append("Clocks were enough: no job was resized, and none had to wait.")
    lines += _savings(story)
    for capped, when in ((False, "Without a cap"), (True, "Under a cap")):
        if (off := _off(story, capped=capped)) is not None:
            differs = f"time and energy of a step differed by at most {percent(off[0])} from what was promised"
            lines.append(f"{when}, {differs}; furthest off: {off[1]}.")
    return lines


def _followed(story: Story, cut: Cut) -> str:
    """Who was resized or stopped because of it, after its clocks."""
    words = [event.time_s for event in story.events if isinstance(event, Limited) and event.time_s > cut.time_s]
    until_s = min(words, default=story.last.time_s)
    named = {"resize": "resized", "migrate": "moved", "preempt": "stopped, to go on later"}
    done = [
        f"{event.name} was {named[event.what]}"
        for event in story.events
        if isinstance(event, Aimed) and event.what in named and cut.time_s <= event.time_s < until_s
    ]
    return f"; then {', '.join(dict.fromkeys(done))}" if done else ""


def _savings(story: Story) -> list[str]:
    lines = []
    for name in dict.fromkeys(stretch.job for stretch in story.stretches):
        found = [each for each in story.of(name) if each.unit_j is not None]
        first = reference(found)
        if first is None or first.unit_j is None or first.unit_s is None:
            continue
        same = [each for each in found if each is not first and each.gpus == first.gpus]
        if not same:
            continue
        best = min(same, key=lambda each: each.unit_j.value if each.unit_j is not None else 0.0)
        assert best.unit_j is not None
        assert best.unit_s is not None
        ratio, slower = best.unit_j / first.unit_j, best.unit_s / first.unit_s
        lines.append(
            f"{name}: at {setting_words(best.setting)} a step took {_change(ratio)} energy and {_change(slower)} time "
            f"against {setting_words(first.setting)}, on the same {first.gpus} GPUs; measured against measured."
        )
    return lines


def _change(ratio: Amount) -> str:
    return f"{100.0 * (ratio.value - 1.0):+.1f} % ± {100.0 * ratio.error:.1f}".replace("-", "−")


def _off(story: Story, *, capped: bool) -> tuple[float, str] | None:
    """The largest difference between promised and measured, in time or energy of a step, and whose it is."""
    found = []
    for each in story.stretches:
        if each.promised is None or each.unit_s is None or each.capped is not capped:
            continue
        off = abs(each.unit_s.value / each.promised.unit_s - 1.0)
        if each.unit_j is not None:
            off = max(off, abs(each.unit_j.value / each.promised.unit_j - 1.0))
        found.append((off, f"{each.job} on {each.gpus} GPUs, {setting_words(each.setting)}"))
    return max(found, default=None)


def known(story: Story) -> list[str]:
    """What each figure rests on."""
    power = (
        "by a meter of its own, which asks neither scheduler nor agents"
        if story.metered
        else "as the nodes' agents report it, about once a second"
    )
    counters = "a job's energy, by the counters of its GPUs and its share of their hosts"
    brought = "as the job brought them, or stretched from these to other numbers of GPUs"
    return [
        f"Measured: the cluster's power, {power}; {counters}; its steps, by its own progress file.",
        f"Believed: what was promised (seconds and joules of a step by GPUs and clock, {brought}), hence the prices.",
        "Under a cap an agent may hold clocks below those listed, to keep its node's ceiling: steps then take longer.",
        "Hosts count with the watts that agents were told, where they cannot measure them.",
        "Errors are those of a straight line through what was seen in a stretch; sensors' own errors are not in them.",
    ]


def _ended(story: Story) -> str:
    names = {job.name for status in story.watched for job in status.jobs}
    over = {job.name for job in story.last.jobs if job.state == "ended" and job.exit_code in (None, 0)}
    over |= {event.name for event in story.events if isinstance(event, Turned) and event.what == "ended"} & names
    count = {1: "one job", 2: "two jobs", 3: "three jobs"}.get(len(names), f"{len(names)} jobs")
    if over == names:
        return f"{count[0].upper()}{count[1:]} ended as they should" if len(names) > 1 else "The job ended as it should"
    return f"{len(over)} of {len(names)} jobs ended as they should"


def _best(story: Story) -> tuple[Stretch, Amount] | None:
    """The stretch that saved most a step, against its job's baseline on as many GPUs."""
    found = []
    for name in dict.fromkeys(stretch.job for stretch in story.stretches):
        mine = story.of(name)
        first = reference(mine)
        for each in mine:
            same = first is not None and each is not first and each.gpus == first.gpus
            if same and first is not None and each.unit_j is not None and first.unit_j is not None:
                found.append((each, each.unit_j / first.unit_j))
    best = min(found, key=lambda item: item[1].value, default=None)
    return best if best is not None and best[1].value < 1.0 else None
