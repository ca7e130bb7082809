import os
import subprocess
import sys

import pytest

LOAD = """
import os
from joulewise.cli.one_thread import load_numpy
load_numpy()
import numpy
numpy.ones((300, 300)) @ numpy.ones((300, 300))
print(len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS"))
"""


@pytest.mark.parametrize("theirs", [None, "3"])
def test_numpy_has_one_thread_and_a_command_inherits_what_the_user_had_set(environ, theirs):
    environ.pop("OPENBLAS_NUM_THREADS", None)
    chosen = environ if theirs is None else {**environ, "OPENBLAS_NUM_THREADS": theirs}
    done = subprocess.run([sys.executable, "-c", LOAD], env=chosen, capture_output=True, text=True, timeout=120)
    assert (done.stdout.split(), done.stderr) == (["1", str(theirs)], "")


def test_without_it_there_would_be_more_where_there_are_cores(environ):
    environ.pop("OPENBLAS_NUM_THREADS", None)
    code = LOAD.replace("load_numpy()\n", "")
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120)
    assert int(done.stdout.split()[0]) > 1 or len(os.sched_getaffinity(0)) == 1


def test_a_measured_command_has_the_environment_that_it_would_have_without_us(environ, recording):
    environ.pop("OPENBLAS_NUM_THREADS", None)
    command = ["sh", "-c", "echo threads: $OPENBLAS_NUM_THREADS."]
    done = subprocess.run(
        [sys.executable, "-m", "joulewise", "run", "--gpu", f"replay:{recording}", "--", *command],
        env=environ, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "threads: .\n")
