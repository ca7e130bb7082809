import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own each time: a thread that some other test left behind would take the signals.
ENVIRON = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}

WRAPS = """
import os, sys
from joulewise.cli.child import Child, exit_code_of, signals_held
with signals_held() as mask:
    try:
        child = Child(sys.argv[1:], os.environ, mask)
    except OSError as error:
        sys.exit(exit_code_of(error))
    while (code := child.wait(5)) is None:
        pass
if child.stopped_by:
    print("stopped by", child.stopped_by)
sys.exit(code)
"""


def run(*command: str) -> int:
    return subprocess.run([sys.executable, "-c", WRAPS, *command], env=ENVIRON).returncode


def test_the_exit_code_of_the_child_is_kept():
    assert run("sh", "-c", "exit 3") == 3


def test_a_child_ended_by_a_signal_gives_128_plus_its_number():
    assert run("sh", "-c", "kill -KILL $$") == 128 + signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_sent_to_us_alone_is_passed_on(number):
    command = [sys.executable, "-c", WRAPS, "sh", "-c", "echo ready; exec sleep 60"]
    with subprocess.Popen(command, env=ENVIRON, stdout=subprocess.PIPE, text=True) as wrapper:
        assert wrapper.stdout.readline() == "ready\n"
        wrapper.send_signal(number)
        said, _ = wrapper.communicate(timeout=120)
    assert wrapper.returncode == 128 + number
    assert said == f"stopped by {int(number)}\n"


def test_the_child_holds_no_signal_that_we_hold():
    assert run("grep", "-q", "^SigBlk:[[:space:]]*0*$", "/proc/self/status") == 0


def test_commands_that_cannot_start_have_the_exit_codes_of_a_shell(tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("no program")
    assert run(str(tmp_path / "absent")) == 127
    assert run(str(plain)) == 126
    assert run(str(tmp_path)) == 126


def script(text: str) -> str:
    return subprocess.run([sys.executable, "-c", text], env=ENVIRON, capture_output=True, text=True).stdout


def test_a_child_that_outlives_the_wait_gives_none_and_goes_on():
    assert script("""
import os, signal
from joulewise.cli.child import Child, signals_held
with signals_held() as mask:
    child = Child(["sleep", "60"], os.environ, mask)
    print(child.wait(0.01))
    os.kill(child.pid, signal.SIGKILL)
    while (code := child.wait(5)) is None:
        pass
    print(code)
""").split() == ["None", "137"]


def test_a_signal_that_came_before_the_start_stops_the_start():
    assert (
        script("""
import os, signal
from joulewise.cli.child import Child, signals_held
with signals_held() as mask:
    os.kill(os.getpid(), signal.SIGTERM)
    try:
        Child(["echo", "started"], os.environ, mask)
    except KeyboardInterrupt:
        print("not started", signal.sigwait({signal.SIGTERM}))
""")
        == f"not started {int(signal.SIGTERM)}\n"
    )


def test_signals_act_as_usual_when_let_through():
    assert script("""
import os, signal, time
from joulewise.cli.child import signals_held, signals_let_through
with signals_held():
    os.kill(os.getpid(), signal.SIGINT)
    print("held")
    try:
        with signals_let_through():
            time.sleep(10)
    except KeyboardInterrupt:
        print("acted")
""").split() == ["held", "acted"]


COUNTS_INTERRUPTS = """
import signal, sys, time
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
print("ready", flush=True)
deadline = time.monotonic() + 20
while not seen and time.monotonic() < deadline:
    time.sleep(0.01)
time.sleep(0.3)
sys.exit(40 + len(seen))
"""


def test_ctrl_c_in_a_terminal_reaches_the_child_once(in_terminal):
    terminal = in_terminal([sys.executable, "-c", WRAPS, sys.executable, "-c", COUNTS_INTERRUPTS], **ENVIRON)
    terminal.read_until("ready")
    terminal.type("\x03")
    assert terminal.finish() == 41


def test_ctrl_z_stops_us_too_and_both_go_on_together(in_terminal, tmp_path):
    (tmp_path / "wrap.py").write_text(WRAPS)
    (tmp_path / "work.py").write_text("import time; print('rea' + 'dy', flush=True); time.sleep(0.5); print('done')")
    terminal = in_terminal(["bash", "--norc", "-i"], PS1="$ ", **ENVIRON)
    terminal.type(f"{sys.executable} {tmp_path}/wrap.py {sys.executable} {tmp_path}/work.py\n")
    terminal.read_until("ready")
    terminal.type("\x1a")
    terminal.read_until("Stopped")
    terminal.type("fg; echo co''de $?\n")
    assert "done" in terminal.read_until("code 0")
