"""Every command that a page tells people to type is typed: as it stands, on virtual GPUs, in real processes."""

from __future__ import annotations

import json
import os
import re
import shlex
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pytest

from bench.estimate_history import START_S, Place, history, openmetrics
from bench.estimate_truths import watched
from joulewise.device.node import spawn
from joulewise.device.wire import SOCKET
from joulewise.testing.slurm_site_parts import free_ports
from tests.docs_desk import TORCH_TRAIN, Desk, instead, measured_stages, sweep, traces
from tests.docs_pages import PAGES, ROOT, Command, blocks, commands, python
from tests.docs_rules import ELSEWHERE, NOT_RUN, Rule, everything, rule_of, scene, wrong
from tests.frameworks.installed import python_path
from tests.postgresql import PASSWORD, USER, PostgresServer
from tests.prometheus import PrometheusServer
from tests.scenarios.someone import Request, asking
from tests.tiers import sample


def test_no_command_of_any_page_is_forgotten() -> None:
    assert len(everything()) > 50
    unknown = [f"{each.page}:{each.line}: {each.text}" for each in everything() if rule_of(each) is None]
    assert unknown == [], "say in RULES where they are typed"


def test_what_is_not_run_is_still_in_some_page_and_what_others_run_is_run() -> None:
    typed = [command.text for page in PAGES for command in commands(page)]
    assert [like for like in (*NOT_RUN, *ELSEWHERE) if not any(re.match(like, each) for each in typed)] == []
    for named in ELSEWHERE.values():
        file, _, test = named.partition("::")
        assert re.search(rf"^def {test}\(", (ROOT / file).read_text("utf-8"), flags=re.MULTILINE), named


def test_what_is_to_be_made_can_be_made() -> None:
    typed = [shlex.split(each.text, comments=True) for page in PAGES for each in commands(page)]
    targets = {word for words in typed if words[0] == "make" for word in words[1:] if "=" not in word}
    rules = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE))
    assert targets
    assert targets - rules == set()


def test_a_container_is_given_the_folder_in_which_the_daemon_listens() -> None:
    (command,) = [each.text for page in PAGES for each in commands(page) if each.text.startswith("docker run")]
    words = shlex.split(command)
    host, inside, rights = words[words.index("-v") + 1].split(":")
    assert Path(host) == Path(inside) == Path(SOCKET).parent
    assert rights == "ro"
    ours = words[words.index("IMAGE") + 1 :]
    assert rule_of(Command("", 0, shlex.join(ours))) is not None


HERE = "http://127.0.0.1:8745"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def typed(desk: Desk, command: Command, rule: Rule) -> list[str]:
    """What is wrong with a command that was typed at a desk."""
    text = command.text
    if "$RUN" in text and "RUN" not in desk.environ:  # one of those that were kept here
        kept = json.loads(desk.type("joulewise history --json").words)
        runs = sorted(run["run"] for run in kept if run["finished"] and "train.py" in run["facts"]["command"])
        desk.environ |= {"RUN": runs[-1], "EARLIER": runs[0]}
    if "--live" in text and "cluster" in text:
        return wrong(desk.at_a_terminal(text, until=rule.says, then="q"), command, rule)
    return wrong(desk.type(text), command, rule)


def drawn(name: str) -> Iterator[tuple[Command, Rule]]:
    """Of a scene's commands, one for each rule, as the seed draws it; all of them in ``make test-all``."""
    for rule, group in groupby(scene(name), key=itemgetter(1)):
        yield from sample(list(group), 1, of=rule.like)


def play(desk: Desk, played: Iterable[tuple[Command, Rule]]) -> None:
    """Type them one after the other; all that is wrong is said at the end."""
    found = [said for command, rule in played for said in typed(desk, command, rule)]
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.usefixtures("virtual_nvml", "may_set")
def test_commands_for_a_machine_with_gpus_do_what_their_pages_say(desk: Desk) -> None:
    sweep(desk.folder / "sweep.csv")
    with spawn("sim:h200*4", speed=20.0) as node:
        desk.environ = {**node.environment(desk.environ), "CUDA_VISIBLE_DEVICES": "0"}
        play(desk, drawn("node"))


@pytest.mark.slow
@pytest.mark.usefixtures("virtual_nvml")
def test_commands_that_plan_or_simulate_do_what_their_pages_say(desk: Desk) -> None:
    measured_stages(desk.folder / "profile.csv")
    traces(desk.folder)
    for block in (each for page in PAGES for each in blocks(page) if each.text.startswith("part,slot,sms")):
        (desk.folder / "schedules.csv").write_text(block.text + "\n", "utf-8")
    with spawn("sim:a100-sxm") as node:  # for 'plan check' to look at
        desk.environ = node.environment(desk.environ)
        play(desk, scene("desk"))
    for file in ("cluster.html", "cluster.png", "plan.html", "plan.png", "xray.html", "partitions.png"):
        assert (desk.folder / file).stat().st_size > 5_000, file


def test_commands_on_public_measurements_say_what_their_pages_say(desk: Desk, data: Path) -> None:
    desk.environ["JOULEWISE_DATA"] = str(data)
    play(desk, scene("data"))


@pytest.mark.slow
def test_a_cluster_can_be_tried_out_as_the_pages_say(desk: Desk) -> None:
    pytest.importorskip("fastapi", reason="the server's packages are not installed (pip install 'joulewise[server]')")
    (port,) = free_ports(1)
    desk.environ["JOULEWISE_HOME"] = str(desk.folder / "home")  # and not this machine's own socket
    (up, _), *others = scene("cluster")
    with desk.left_running(f"{up.text} --port {port}", ready="scheduling on unix:"):
        play(desk, others)


@pytest.mark.slow
@pytest.mark.usefixtures("virtual_nvml", "may_set")
def test_the_server_serves_as_the_pages_start_it(desk: Desk) -> None:
    pytest.importorskip("fastapi", reason="the server's packages are not installed (pip install 'joulewise[server]')")
    (desk.folder / "plans").mkdir()
    asked: list[str] = []
    with spawn("sim:h200", speed=20.0) as node:
        desk.environ = node.environment(desk.environ)
        (port,) = free_ports(1)
        desk.environ["SERVER"] = f"http://127.0.0.1:{port}"
        played = list(scene("serve"))
        clients = [each for each in played if each[0].text.split()[1] != "serve"]
        for command, _ in played:
            if command.text.split()[1] == "serve":
                with desk.left_running(f"{command.text} --port {port}", ready=r"on http://\S+"):
                    (socket,) = desk.folder.rglob(f"serve-{port}.sock")
                    looks: list[Request] = [("GET", path, None, {}) for path in ("/", "/metrics", "/api/overview")]
                    answers = asking(os.geteuid(), f"unix:{socket}", looks)
                    assert [status for status, _ in answers] == [200] * len(looks)
                    asked += [body for _, body in answers]
                    if command.text == "joulewise serve":
                        play(desk, clients)
                        (block,) = python(ROOT / "docs" / "serve.md")
                        # a job of its own: one of that name has been registered with other batch sizes
                        program = instead(block.text, {HERE: desk.environ["SERVER"], "nightly": "weekly"})
                        said = desk.type(f"python - <<'END'\n{program}\nprint(trial)\nEND")
                        assert said.code == 0, said
                        assert "batch_size=32" in said.words, said
    assert any('joulewise_gpu_power_watts{gpu_uuid="GPU-' in each for each in asked)
    assert any('"kwh_price":0.3' in each for each in asked)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.usefixtures("virtual_nvml", "may_set")
def test_commands_for_pytorch_and_for_other_tools_do_what_their_pages_say(tmp_path: Path, peers_python: Path) -> None:
    desk = Desk(tmp_path, train=TORCH_TRAIN, python=peers_python)
    (tmp_path / "installed").mkdir()
    desk.environ["PYTHONPATH"] = python_path(tmp_path / "installed")
    others = []
    for command, rule in scene("torch"):
        if "gpus.env" in command.text:
            others.append(command.text)
        else:
            play(desk, [(command, rule)])
    started, used = others
    said = desk.type(
        f"{started}\nuntil [ -s gpus.env ]; do sleep 0.1; done\n{used}; done=$?; kill $!; wait; exit $done"
    )
    assert said.code == 0, said
    assert "Tesla V100" in said.words, said


@pytest.mark.slow
def test_a_fleet_is_estimated_as_its_page_says(desk: Desk, prometheus: Callable[..., PrometheusServer]) -> None:
    hours = 2.0
    jobs = watched(None, count=2, seed=4)
    places = [Place(job, f"team/{job.case.name}", gpus=1, hours=1.5, idle_hours=0.25) for job in jobs]
    server = prometheus(history=openmetrics(history(places)))
    until = datetime.fromtimestamp(START_S + hours * 3600.0, UTC).strftime("%Y-%m-%dT%H:%M")
    for command, rule in scene("prometheus"):
        text = command.text.replace("http://prometheus:9090", server.url)
        said = desk.type(f"{text} --days {hours / 24.0} --until {until}")  # what this Prometheus has
        assert wrong(said, command, rule) == []


@pytest.mark.slow
def test_a_postgresql_is_set_up_and_served_from_as_the_pages_say(desk: Desk, postgresql: PostgresServer) -> None:
    pytest.importorskip("fastapi", reason="the server's packages are not installed (pip install 'joulewise[server]')")
    host = postgresql.folder
    desk.environ |= {"PGHOST": str(host), "PGUSER": USER, "PGPASSWORD": PASSWORD, "PGDATABASE": "postgres"}
    there = {r"\bjoulewise@db\.example\.org/joulewise": f"keeper:secret@/kept?host={host}"}
    there |= {
        r"createuser joulewise": "createuser keeper",
        r"createdb joulewise --owner joulewise": "createdb kept --owner keeper",
    }
    commands = [instead(command.text, there) for command, _ in scene("postgresql")]
    made = [text for text in commands if text.startswith("create")]
    for text in made:
        said = desk.type(text, answers="secret\nsecret\n")
        assert said.code == 0, said
    (told,) = [text for text in commands if text.startswith("export")]
    desk.environ["JOULEWISE_DATABASE"] = told.partition("=")[2]
    del desk.environ["PGPASSWORD"], desk.environ["PGUSER"]
    said = desk.type("joulewise serve token --scope read --name wall-display > display.token")
    assert said.code == 0, said
    (port,) = free_ports(1)
    (served,) = [text for text in commands if text.startswith("joulewise serve")]
    served = served.replace("postgresql://", "'postgresql://") + f"' --port {port} --no-gpu"
    with desk.left_running(served, ready=r"on http://\S+"):
        asks = urllib.request.Request(f"http://127.0.0.1:{port}/api/overview")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(asks, timeout=60)
        asks.add_header("Authorization", f"Bearer {(desk.folder / 'display.token').read_text().strip()}")
        with urllib.request.urlopen(asks, timeout=60) as answer:
            assert json.load(answer)["runs"] == 0
    (looked,) = [text for text in commands if text.startswith("psql")]
    said = desk.type(looked)
    assert said.code == 0, said
    assert "stream | count" in said.words
