import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import joulewise
import joulewise.cli.usage
from joulewise.cli import VERBS, Talk, app, complain, main
from joulewise.cli.summary import ending
from tests import preloaded

# Every verb and its flags. Adding one edits this list on purpose.
SCENE = {"--gpu", "--gpus-per-node", "--host-watts", "--power-off", "--no-power-off", "--warm", "--energy-budget"}
SCENE |= {"--power-cap", "--fairness", "--load", "--jobs", "--tenant", "--size-error", "--seed"}
LIVE = {"--server", "--token-file"}
STORE = {"--database", "--journal"}
FLAGS = {
    "run": {"--gpu", "--json", "--record", "--plot", "--interval", "--live", "--no-live", "--set", "--speed"}
    | {"--no-keep", "--tune", "--max-slowdown", "--objective", "--dry-run", "--report", "--seed"}
    | {"--gpu-hour-price", "--kwh-price", "--host-watts", "--eta", "--power-budget", "--energy-budget"},
    "history": {"--learnt", "-n", "--report", "--forget", "--yes", "--json"} | STORE,
    "report": {"--out", "-o", "--plot", "--png", "--compare", "--carbon-g-per-kwh", "--carbon-source", "--json"}
    | STORE,
    "verify": {"--key", "--json"} | STORE,
    "countersign": {"--at", "--token-file", "--json"} | STORE,
    "estimate": {"--prometheus", "--days", "--until", "--step", "--match", "--by", "--max-slowdown", "--kwh-price"}
    | {"--carbon-g-per-kwh", "--carbon-source", "--token-file", "--user", "--password-file", "--ca-file", "--header"}
    | {"--seed", "--out", "-o", "--plot", "--json"},
    "recur run": {"--job", "--batch-sizes", "--default", "--target", "--max-epochs", "--lr", "--lr-rule"}
    | {"--eta", "--objective", "--max-slowdown", "--deadline", "--gpu-hour-price", "--kwh-price", "--host-watts"}
    | {"--metric-pattern", "--stop-at-target", "--no-stop-at-target", "--grace", "--gpu", "--speed", "--seed"}
    | {"--tune", "--no-tune", "--recurrence", "--database", "--server", "--token-file", "--json"},
    "recur status": {"--on", "--database", "--server", "--token-file", "--json"},
    "recur history": {"-n", "--database", "--server", "--token-file", "--json"},
    "recur frontier": {"--on", "--database", "--server", "--token-file", "--json"},
    "recur plot": {"--on", "--database", "--server", "--token-file"},
    "recur list": {"--database", "--server", "--token-file", "--json"},
    "top": {"--gpu", "--once", "--json", "--interval"},
    "doctor": {"--json"},
    "config": {"--json"},
    "sim": {"--gpu", "--speed", "--load", "--couple", "--seed", "--json"},
    "leases": {"--socket", "--state", "--json"},
    "restore": {"--gpu", "--job", "--forget", "--state", "--grants", "--site", "--socket", "--json"},
    "grant add": {
        "--uid",
        "--gpu",
        "--for",
        "--job",
        "--cgroup",
        "--knob",
        "--name",
        "--shared",
        "--claim",
        "--grants",
        "--json",
    },
    "grant list": {"--grants", "--json"},
    "grant remove": {"--job", "--grants", "--json"},
    "stand": {"--gpu", "--end", "--list", "--socket", "--state", "--json"},
    "daemon": {
        "--socket",
        "--state",
        "--grants",
        "--audit",
        "--site",
        "--socket-mode",
        "--ready-fd",
        "--print-unit",
    },
    "serve": {
        "--host",
        "--port",
        "--database",
        "--token-file",
        "--no-auth",
        "--socket",
        "--trust-local-users",
        "--gpu",
        "--no-gpu",
        "--interval",
        "--plans",
    }
    | {"--kwh-price", "--currency", "--carbon-g-per-kwh", "--carbon-source", "--countersign-key"},
    "serve token": {"--scope", "--name", "--token-file"},
    "plan solve": {
        "--schedule",
        "--stages",
        "--microbatches",
        "--ranks",
        "--transfer",
        "--gpus-per-rank",
        "--blocking-w",
    }
    | {"--scale-time", "--scale-energy", "--split-backward", "--switch-time", "--switch-energy", "--slope-grid"}
    | {"--model", "--gpu-name", "--driver", "--points", "--out", "-o", "--json"},
    "plan show": {"--deadline", "--report", "--plot", "--json"},
    "plan query": {"--deadline", "--energy", "--power", "--json"},
    "plan check": {"--gpu", "--gpu-name", "--driver", "--model", "--json"},
    "plan partitions": {"--plot", "--json"},
    "plan xray": {"--gpu", "--sm-mhz", "--power-w", "--max-slowdown", "--seed", "--report", "--plot", "--json"},
    "plan profile": {"--out", "-o", "--json"},
    "cluster simulate": {"--policy", "--plot", "--out", "-o", "--decisions", "--tariff", "--json"} | SCENE,
    "cluster explain": {"--at", "--trace", "--decisions", "--policy", "--json"} | SCENE | LIVE,
    "cluster up": {"--engine", "--partition", "--gpu", "--host-watts", "--power-off", "--no-power-off", "--warm"}
    | {"--policy", "--grace", "--round", "--start", "--restart"}
    | {"--power-cap", "--energy-budget", "--tariff", "--cap-file", "--cap-safe", "--database"}
    | {"--socket", "--operators-group", "--host", "--port", "--token-file", "--gpus-per-node", "--speed", "--seed"}
    | {"--site"},
    "cluster submit": {"--name", "--gpus", "--checkpoint", "--least", "--most", "--steps", "--frontier", "--workload"}
    | {"--batch", "--deadline", "--weight", "--limit", "--engine", "--partition", "--json"}
    | LIVE,
    "cluster status": {"--json", "--live"} | LIVE,
    "cluster cap": {"--for", "--ramp", "--json"} | LIVE,
    "cluster budget": {"--json"} | LIVE,
    "cluster cancel": {"--json"} | LIVE,
    "cluster report": {"--out", "-o", "--meter", "--accounts", "--cluster", "--database", "--json"},
    "cluster agent": {"--node", "--socket", "--grants", "--state", "--host-watts", "--period"} | LIVE,
    "model train": {"--output", "-o", "--gpu", "--json"},
    "model fit": {"--name", "--output", "-o", "--like", "--sm-max", "--hold", "--starts", "--json"},
    "model list": {"--json"},
    "model show": {"--json"},
}
ROOT_FLAGS = {"-q", "--quiet", "-v", "--verbose", "--version", "--install-completion", "--show-completion"}


def flags(command) -> set[str]:
    options = [param for param in command.params if param.param_type_name == "option"]
    return {name for option in options for name in (*option.opts, *option.secondary_opts)}


def test_verbs_and_flags_are_exactly_these():
    found = {}
    for name, verb in VERBS.items():
        command = verb.load(name)
        inner = getattr(command, "commands", None)
        if inner is None:
            found[name] = flags(command)
        else:
            found |= {f"{name} {part}": flags(each) for part, each in inner.items()}
            if own := flags(command):
                found[name] = own
    assert found == FLAGS
    assert flags(typer.main.get_command(app)) == ROOT_FLAGS


def run(*args: str, capsys) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(args))
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def test_the_version_is_the_packages(capsys):
    assert run("--version", capsys=capsys) == (0, f"joulewise {joulewise.__version__}\n", "")


def test_nothing_at_all_shows_the_help(capsys):
    code, out, _ = run(capsys=capsys)
    assert code == 0
    assert all(verb in out for verb in VERBS)


def test_a_verb_with_verbs_of_its_own_shows_its_help(capsys):
    code, out, err = run("model", capsys=capsys)
    assert (code, err) == (0, "")
    assert "fit" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["rnu"], "joulewise: No such command 'rnu'. Did you mean 'run'?; see 'joulewise --help'"),
        (["--nonsense"], "joulewise: No such option: --nonsense; see 'joulewise --help'"),
        (["run"], "joulewise: Missing argument 'COMMAND'; write 'joulewise run [OPTIONS] -- COMMAND ...', see 'joulew"),
        (
            ["report", "--compare", "one"],
            "joulewise: Option '--compare' requires 2 arguments; see 'joulewise report --h",
        ),
        (["tune", "--", "true"], "joulewise: no verb is called 'tune'; write 'joulewise run --tune -- COMMAND'"),
        (
            ["sh", "train.sh"],
            "joulewise: no verb is called 'sh'; to measure that command, write 'joulewise run -- sh …'",
        ),
        (["nonsense"], "joulewise: No such command 'nonsense'; see 'joulewise --help'"),
        (["recur", "nope"], "joulewise: No such command 'nope'; see 'joulewise recur --help'"),
        (["run", "--gpu", "7", "--", "true"], "write 'nvml:7'; or else 'nvml:0-3'"),
        (["top", "--gpu", "h200"], "write 'sim:h200' for a virtual one; or else "),
        (
            ["run", "--tune", "--max-slowdown", "200%", "--", "true"],
            "--max-slowdown 200% is outside 0 to 100%; write 2%",
        ),
        (["run", "--max-slowdown", "2%", "--", "true"], "--max-slowdown is about tuning; add --tune, or leave it out"),
        (["verify", "nope.html"], "no such file or directory; name what 'run --report' wrote, or a run of 'history'"),
        (["report", "x", "--compare", "a", "b"], "x and --compare a b are three runs; name one RUN, or two with"),
        (["recur", "run", "--", "true"], "joulewise: Missing option '--job'; see 'joulewise recur run --help'"),
        (["run", "--interval", "x", "true"], "see 'joulewise run --help'"),
        (["top", "--interval", "0"], "joulewise: --interval 0 is outside 0.1 to 3600 seconds; 1 is usual"),
        (["run", "-q", "--", "true"], "joulewise: -q goes before the verb; write 'joulewise -q run …'"),
        (["cluster", "cap", "--verbose", "1kW"], "write 'joulewise --verbose cluster cap …'"),
        (["history", "--version"], "joulewise: --version goes before the verb; write 'joulewise --version'"),
        (["help", "nonsense"], "joulewise: No such command 'nonsense'; see 'joulewise --help'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(args, message, capsys):
    code, out, err = run(*args, capsys=capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


@pytest.mark.parametrize(
    ("args", "page"),
    [
        (["-h"], "Usage: joulewise [OPTIONS] VERB\n"),
        (["help"], "Usage: joulewise [OPTIONS] VERB\n"),
        (["-q", "help", "top"], "Usage: joulewise top [OPTIONS]\n"),
        (["help", "run"], "Usage: joulewise run [OPTIONS] -- COMMAND ...\n"),
        (["help", "run", "touch", "x"], "Usage: joulewise run [OPTIONS] -- COMMAND ...\n"),
        (["help", "recur", "run", "touch", "x"], "Usage: joulewise recur run [OPTIONS] -- COMMAND ...\n"),
        (["help", "cluster"], "Usage: joulewise cluster [OPTIONS] VERB\n"),
        (["help", "cluster", "cap"], "Usage: joulewise cluster cap [OPTIONS] "),
        (["run", "-h"], "Usage: joulewise run [OPTIONS] -- COMMAND ...\n"),
        (["cluster", "cap", "-h"], "Usage: joulewise cluster cap [OPTIONS] "),
    ],
)
def test_help_is_found_by_whatever_it_is_asked_with(args, page, capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    code, out, err = run(*args, capsys=capsys)
    assert (code, err) == (0, "")
    assert out.startswith(page)


def test_without_colours_help_is_bold_at_most(environ):
    asked = {**environ, "NO_COLOR": "1", "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    shown = subprocess.run(
        [sys.executable, "-m", "joulewise", "--help"], env=asked, capture_output=True, text=True, check=True
    )
    assert set(re.findall(r"\x1b\[[\d;]*m", shown.stdout)) == {"\x1b[0m", "\x1b[1m"}


def test_a_message_of_several_lines_becomes_one(capsys):
    complain("one\n  two\nthree")
    assert capsys.readouterr().err == "joulewise: one two three\n"


def test_talk_is_moderate_unless_told_otherwise():
    assert Talk() == Talk(quiet=False, verbose=False)


def test_help_loads_no_verb_and_nothing_heavy(environ):
    probe = (
        "import sys\n"
        "sys.argv = ['joulewise', '--help']\n"
        "import atexit\n"
        "heavy = ('numpy', 'scipy', 'matplotlib', 'pynvml', 'torch', 'joulewise.cli.run', 'joulewise.device.node')\n"
        "atexit.register(lambda: print('LOADED', [name for name in heavy if name in sys.modules]))\n"
        "from joulewise.cli import main\n"
        "main()\n"
    )
    shown = subprocess.run([sys.executable, "-c", probe], env=environ, capture_output=True, text=True, check=True)
    assert "LOADED []" in shown.stdout


def test_module_and_colour_free_output(environ):
    shown = subprocess.run(
        [sys.executable, "-m", "joulewise", "--help"],
        env={**environ, "NO_COLOR": "1", "FORCE_COLOR": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Usage: joulewise" in shown.stdout
    assert "\x1b[3" not in shown.stdout


def test_completion_offers_the_verbs_and_a_verbs_flags(environ):
    def completed(words: str) -> str:
        ask = {
            **environ,
            "_JOULEWISE_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        }
        return preloaded.run(env=ask).stdout

    assert set(completed("joulewise ").split()) >= set(VERBS)
    assert "--record" in completed("joulewise run --r")


def test_a_reader_that_leaves_is_no_fault_worth_a_traceback(environ):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        ran = preloaded.Command("doctor", "--json", env=environ, stdout=gone, stderr=subprocess.PIPE)
        _, said = ran.communicate()
    assert "Traceback" not in said
    assert ran.returncode != 0


@pytest.mark.parametrize("args", [["--help"], ["doctor"], ["model", "list"], ["model", "show", "h200"]])
def test_a_full_disk_is_one_line(args, environ):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with Path("/dev/full").open("w") as full:
        ran = preloaded.Command(*args, env=environ, stdout=full, stderr=subprocess.PIPE)
        _, said = ran.communicate()
    assert ran.returncode == 1
    assert said.count("\n") == 1
    assert said.startswith("joulewise: the output cannot be written: no space left on device; ")


@pytest.mark.parametrize(
    ("args", "plain"), [(["run", "--help"], "joules +/- error"), (["doctor"], "x "), (["model", "list"], "time +/-")]
)
def test_an_encoding_that_lacks_our_signs_gets_plain_ones(args, plain, environ, tmp_path):
    ran = subprocess.run(
        [sys.executable, "-m", "joulewise", *args],
        env={**environ, "PYTHONIOENCODING": "ascii", "JOULEWISE_POWERCAP_ROOT": str(tmp_path / "none")},
        capture_output=True,
        encoding="ascii",
    )
    assert ran.stderr == ""
    assert plain in ran.stdout
    assert "?" not in ran.stdout


def test_bytes_that_are_no_text_go_out_as_they_came(environ):
    probe = "from joulewise.cli.plain import speak_plainly; speak_plainly(); import os; print(os.fsdecode(b'a\\xffb'))"
    ran = subprocess.run([sys.executable, "-c", probe], env=environ, capture_output=True, check=True)
    assert ran.stdout == b"a\xffb\n"


def test_endings_of_signals_are_named():
    assert ending(130) == "signal SIGINT (exit code 130)"


@pytest.mark.parametrize(("args", "traced"), [([], False), (["-v"], True)])
def test_a_fault_of_ours_is_one_line_unless_asked_for_more(args, traced, environ):
    broken = (
        "import sys, joulewise.cli.past as past\n"
        "def history():\n"
        "    import logging\n"
        "    try: {}['odd']\n"
        "    except KeyError: logging.getLogger('joulewise').exception('strange')\n"
        "    1 / 0\n"
        "past.history = history\n"
        "from joulewise.cli import main; main(sys.argv[1:])"
    )
    ran = subprocess.run([sys.executable, "-c", broken, *args, "history"], env=environ, capture_output=True, text=True)
    assert ran.returncode == 1
    assert ("Traceback" in ran.stderr) is traced
    assert "ZeroDivisionError: division by zero" in ran.stderr
    assert "joulewise: strange\n" in ran.stderr
    assert traced or ran.stderr.count("\n") == 3
