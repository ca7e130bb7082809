"""Which command of the pages is typed where, in what order, and what it must say: for ``test_docs_commands``.

Commands are typed as they stand. Only what is the reader's own is put in another's place: hosts, users, names of runs,
ports, how many processes. A command that no rule knows fails a test, so that no snippet is forgotten; the few that are
not run are listed with their reasons.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from tests.docs_desk import Said
from tests.docs_pages import PAGES, Command, commands

NOT_RUN = {
    r"make (run|test|docs|demo-cluster|face)\b": "the build itself; that there is such a target is tested below",
    r"(python3|/usr/bin/python3) -m venv|pip install|ln -s|systemctl|/opt/joulewise/|git clone": "changes the machine",
    r"docker run": "needs a container engine; what it mounts and calls is tested below",
}
"""Kinds of commands that no test types, and why."""
ELSEWHERE = {
    r"joulewise sim --gpu 'sim:h200\*4' --speed 4 -- torchrun .*train_pipeline": (
        "tests/frameworks/test_pipelining.py::test_only_the_first_rank_speaks_and_says_one_line"
    ),
    r"joulewise plan profile -- torchrun": (
        "tests/cli/test_plan_profile.py::test_a_job_that_knows_nothing_of_it_is_measured_and_a_plan_can_be_made_of_it"
    ),
    r"joulewise recur run .*train_recurring": (
        "tests/cli/test_recur_example.py::test_the_example_recurs_learns_and_really_converges"
    ),
    # A server on another host, and a key that somebody there gives.
    r"joulewise (countersign|serve .*--countersign-key|verify .*--key) ": (
        "tests/cli/test_countersign.py::test_another_user_s_server_countersigns_and_what_is_forged_later_is_found"
    ),
}
"""Kinds of commands that another test types, since they take minutes or a machine to themselves."""
PLAYED_WHOLE = {"docs/tutorial.md"}
"""Pages that ``test_docs_snippets`` plays from the first command to the last."""

TO_REPORT = {r"--report \S+": "--report report.html"}
RUNS = {r"\b20260313-\d{4}\b": "$EARLIER", r"\b20260314-\d{4}\b": "$RUN"}
SUMMARY = r"joulewise: .*\n.* k?J in .* \(virtual\)"
TERMS = "--batch-sizes 8..256 --default 32 --target 'val_acc>=0.84' --max-epochs 10"
TWO_RANKS = {
    r"^": "joulewise sim --gpu 'sim:h200*2' --speed 4 --couple torch -- ",
    r"--nproc-per-node 8": "--nproc-per-node 2",
}
SHORT = {r"--steps 2700": "--steps 90", r"(train_virtual\.py)$": r"\1 --epochs 1 --steps 8"}


@dataclass(frozen=True, slots=True)
class Rule:
    """Commands that begin like this (a regular expression) are typed in that scene, in the order of the rules."""

    like: str
    scene: str
    says: str
    """What must be in what it prints; again a regular expression."""
    but: Mapping[str, str] = field(default_factory=dict)
    """What is the reader's own → what there is here."""


RULES = (
    Rule(r"joulewise doctor", "node", r"Can measure \d GPUs?; can set \d GPUs?"),
    Rule(r"joulewise run --gpu sim:h200 .*--tune", "node", r"the report is report\.html", SHORT),
    Rule(r"joulewise run --gpu sim:h200 .*--set", "node", r"power limit 500 W, restored to 700 W", SHORT),
    Rule(r"joulewise run --gpu sim:h200 -- python", "node", r"W on average  NVIDIA H200 \(virtual\)", SHORT),
    Rule(r"joulewise run --tune --dry-run", "node", r"joulewise: (would set|not tuned|nothing)"),
    Rule(r"joulewise run --tune .*--report", "node", rf"(?s){SUMMARY}.*the report is report\.html", TO_REPORT),
    Rule(r"joulewise run --tune -- python", "node", rf"(?s){SUMMARY}.*tells it"),
    Rule(r"joulewise run --set", "node", r"power limit 500 W, restored to 700 W"),
    Rule(r"joulewise run -- python", "node", r"(?s)W on average.*energy counter; ± one standard error"),
    Rule(r"joulewise verify", "node", r"verified: recomputed from the journal"),
    Rule(r"joulewise history( +#.*)?$", "node", r"(?s)^run .*python train\.py"),
    Rule(r"joulewise history --learnt", "node", r"NVIDIA H200 GPU-\w+ +\d runs?, last "),
    Rule(r"joulewise (history|report) 2026", "node", r"python train\.py|\.html|\.png", RUNS),
    Rule(r"joulewise report --compare", "node", r"energy", RUNS),
    # Who reads it says yes at the prompt; nobody sits here.
    Rule(r"joulewise history --forget", "node", r"\b\d+ runs?\b", {r"all$": "all --yes"}),
    Rule(r"joulewise grant add", "node", r"power_limit_w", {"alice": "nobody", "$": " --grants grants"}),
    Rule(
        r"joulewise grant list",
        "node",
        r"uid \d+ may set power_limit_w 300 to 700 on GPU-.* until ",
        {"$": " --grants grants"},
    ),
    Rule(r"joulewise grant remove", "node", r"removed", {"$": " --grants grants"}),
    Rule(r"joulewise model fit", "node", r"l40s\.toml"),
    # In real time, and so a tenth of the job.
    Rule(r"joulewise run --gpu sim:l40s", "node", r"NVIDIA L40S \(virtual\)", {r"$": " --steps 10"}),
    Rule(r"joulewise recur run --job", "node", r"val_acc"),
    Rule(r"sqlite3", "node", r"(?m)^\d+\|"),
    Rule(r"cat > trace\.csv", "desk", r""),
    Rule(r"joulewise cluster simulate", "desk", r"priced has the shortest mean completion time", {r"\*512": "*16"}),
    Rule(r"joulewise cluster explain \S+ --at", "desk", r"GPUs"),
    Rule(r"joulewise plan solve \$JOULEWISE_DATA", "data", r"−13\.6 % energy at the same speed; at most −26\.9 %"),
    Rule(r"joulewise plan solve", "desk", r"% energy at the same speed"),
    Rule(r"joulewise plan show", "desk", r"GPU|rank"),
    Rule(r"joulewise plan query", "desk", r" s\b"),
    Rule(r"joulewise plan check", "desk", r""),
    Rule(r"joulewise plan partitions", "desk", r"attention"),
    Rule(r"joulewise plan xray", "desk", r"A plan could save "),
    Rule(r"joulewise cluster up --engine sim", "cluster", r""),
    Rule(r"joulewise cluster submit --engine sim", "cluster", r"night-1"),
    Rule(r"joulewise cluster status --live", "cluster", r"night-1"),
    Rule(r"joulewise cluster cap 9kW", "cluster", r"9"),
    Rule(r"joulewise cluster explain", "cluster", r"night-1"),
    Rule(r"joulewise serve( --(gpu|kwh-price) .*)?( +#.*)?$", "serve", r""),
    Rule(r"joulewise recur run --server", "serve", r"val_acc", {"…": TERMS, r"http://127\.0\.0\.1:8745": "$SERVER"}),
    Rule(r"joulewise serve token|for node in", "slurm", r""),
    Rule(r"joulewise cluster up --engine slurm", "slurm", r""),
    Rule(r"joulewise cluster agent", "slurm", r""),
    Rule(r"joulewise cluster submit", "slurm", r"(?m)^\d+$"),
    Rule(r"joulewise cluster cap", "slurm", r"15"),
    Rule(r"srun joulewise", "slurm", r""),
    Rule(r"srun .*torchrun", "slurm", r""),
    Rule(r"joulewise run --tune -- torchrun", "torch", r"(?s)trained.*2 × NVIDIA H200 \(virtual\)", TWO_RANKS),
    Rule(r"joulewise sim .*--couple torch", "torch", r"trained, loss"),
    Rule(r"joulewise sim .*nvitop", "torch", r"A100"),
    Rule(r"joulewise sim .*> gpus\.env &$|\. \./gpus\.env", "torch", r""),
    Rule(r"joulewise estimate", "prometheus", r"Tuning would save [\d.]+ \([\d.]+ to [\d.]+\) kWh a day"),
    Rule(r"createuser|createdb|export JOULEWISE_DATABASE|psql", "postgresql", r""),
    Rule(r"joulewise serve --host", "postgresql", r""),
)


def rule_of(command: Command) -> Rule | None:
    """The first that knows it."""
    return next((rule for rule in RULES if re.match(rule.like, command.text)), None)


@cache
def everything() -> tuple[Command, ...]:
    """All commands of all pages that are to be run here."""
    others = (*NOT_RUN, *ELSEWHERE)
    return tuple(
        command
        for page in PAGES
        for command in commands(page)
        if command.page not in PLAYED_WHOLE and not any(re.match(each, command.text) for each in others)
    )


def scene(name: str) -> Iterator[tuple[Command, Rule]]:
    """The commands of a scene, by the order of their rules and then of the pages, with what is put in another's place;
    the same one only once."""
    seen = set()
    found = [(RULES.index(rule), command) for command in everything() if (rule := rule_of(command)) is not None]
    for place, command in sorted(found, key=lambda each: each[0]):
        rule, text = RULES[place], re.sub(r"\s+#.*$", "", command.text)
        for pattern, replacement in rule.but.items():
            text = re.sub(pattern, replacement, text)
        if rule.scene == name and text not in seen:
            seen.add(text)
            yield command._replace(text=text), rule


def wrong(said: Said, command: Command, rule: Rule) -> list[str]:
    """Empty where it did what its page promises."""
    if said.code == 0 and re.search(rule.says, said.words):
        return []
    return [f"{command.page}:{command.line}: {said}\nwas to say {rule.says!r}\n"]
