# Two commands do all set-up on a fresh Debian machine (make, python3-venv, g++): `make run` and `make test`.

PYTHON ?= python3
VENV   := .venv
PEERS  := .venv-peers
BIN    := $(VENV)/bin

.PHONY: help run demo-cluster test test-all coverage test-ready stack face check bench docs peers system system-slurm system-face lock format clean

# Thousands of processes are started here: what Python has compiled is kept, whatever the machine's habit is.
unexport PYTHONDONTWRITEBYTECODE

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

# A real GPU needs a Python that has PyTorch (PYTHON=…/bin/python); anywhere else the job runs on a virtual H200 that
# lives twenty times as fast: twenty minutes of training in about one.
run: $(VENV)/run.done  ## tune an example training job, on a virtual H200 where there is no real GPU; ends with a report
	@mkdir -p out
	@if $(PYTHON) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; \
	then set -- --gpu auto -- $(PYTHON) examples/train_torch.py --seconds 300; \
	else echo "no GPU that PyTorch sees here: a virtual H200, twenty times as fast as life, so that twenty minutes take one"; \
	  set -- --gpu sim:h200 --speed 20 -- $(BIN)/python examples/train_virtual.py --workload recommender --step-seconds 0.15 --steps 2700; fi; \
	gpus=""; while [ "$$1" != -- ]; do gpus="$$gpus $$1"; shift; done; shift; \
	$(BIN)/joulewise run $$gpus --tune --live --report out/report.html --plot out/power.svg --record out/run.jsonl -- "$$@" \
	&& echo "open out/report.html; check its claim with: $(BIN)/joulewise verify out/report.html" \
	&& echo "to go on: . $(BIN)/activate && joulewise doctor"

# Root and Debian, for a Slurm of its own; nothing of it is left afterwards. Seven minutes.
demo-cluster: $(VENV)/demo.done system-slurm  ## three jobs on a virtual Slurm cluster whose power is cut; ends with a report
	@mkdir -p out
	@$(BIN)/python examples/demo_cluster --out out/cluster.html

# What has to be installed comes from three places at once. Most tests bear company, and wait for processes of their own
# for much of their time: more of them at once than there are processors. Those marked 'alone' or 'stack' keep several
# processes in step, for which another's load would be a finding: they come last, by themselves (tests/alone_last.py).
# Nothing that failed is tried again.
test:  ## tests that prove the product on this machine: eight minutes on two cores
	@$(MAKE) --no-print-directory $(if $(findstring -j,$(MAKEFLAGS)),,-j3) test-ready
	$(PYTEST) -m 'not exhaustive and not stack'

test-all: test  ## and all others: every crash point, all examples, a Slurm of which every part is killed
	TESTS=all $(PYTEST) -m 'exhaustive or sampled or stack'

PYTEST := $(BIN)/python -m pytest -q -n 4 --dist loadgroup

# Processes that tests start are measured as well. The crash tests, which trace lines themselves, fail here.
coverage: test-ready  ## lines and branches of src that all tests run, and which test runs which line
	rm -rf build/coverage && mkdir -p -m 777 build/coverage
	-COVERAGE_PROCESS_START=$(CURDIR)/pyproject.toml COVERAGE_FILE=$(CURDIR)/build/coverage/.coverage TESTS=$(TESTS) \
	  $(PYTEST) -p tests.coverage_contexts -m '$(if $(filter all,$(TESTS)),not stack,not exhaustive and not stack)'
	cd build/coverage && COVERAGE_FILE=.coverage $(CURDIR)/$(BIN)/coverage combine -q --rcfile=$(CURDIR)/pyproject.toml
	COVERAGE_FILE=build/coverage/.coverage $(BIN)/coverage report --skip-covered --sort=cover

test-ready: $(VENV)/collected.done peers system

stack: $(VENV)/dev.done system-slurm  ## of them, those of a whole cluster: a virtual Slurm, every part of it killed in turn
	$(BIN)/python -m pytest -q -m stack

face: $(VENV)/dev.done system-face  ## of them, those of the dashboard in a real browser and metrics in a real Prometheus
	$(BIN)/python -m pytest -q -m face

check: $(VENV)/dev.done  ## style, types, and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/dev.done  ## every bench that needs no GPU, as tables
	$(BIN)/python -m bench.gpu_model
	$(BIN)/python -m bench.measure
	$(BIN)/python -m bench.control
	$(BIN)/python -m bench.store
	$(BIN)/python -m bench.desk
	$(BIN)/python -m bench.period
	$(BIN)/python -m bench.guarantee
	$(BIN)/python -m bench.online --virtual
	$(BIN)/python -m bench.recurring --laws --seeds 4 --jobs 40
	$(BIN)/python -m bench.frontier --no-lowtime
	$(BIN)/python -m bench.cluster fidelity
	$(BIN)/python -m bench.cluster models
	$(BIN)/python -m bench.cluster speed
	$(BIN)/python -m bench.cluster energy --trace $$JOULEWISE_DATA/cluster/elasticflow/elastic/*.csv $$JOULEWISE_DATA/cluster/pollux/workloads/workload-6.csv

docs: $(VENV)/docs.done  ## the documentation site, into out/site, without a network
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m docs.make

peers: $(PEERS)/done  ## other people's tools, apart from ours, that the tests run against the virtual GPUs

# Real parts that some tests start, as COMMAND,…:PACKAGE,… of Debian. As root they are installed, all at once or, where
# that fails, one by one; the tests of those that are still absent skip.
SLURM_PARTS := slurmctld,slurmd,squeue,slurmdbd,munged,mariadbd:slurmctld,slurmd,slurm-client,slurm-wlm-basic-plugins,slurmdbd,munge,mariadb-server
FACE_PARTS  := prometheus,promtool:prometheus chromium:chromium
ALL_PARTS   := systemd-analyze:systemd initdb:postgresql $(SLURM_PARTS) $(FACE_PARTS)

system: PARTS = $(ALL_PARTS)
system-slurm: PARTS = $(SLURM_PARTS)
system-face: PARTS = $(FACE_PARTS)
system system-slurm system-face:
	@has() { command -v $$1 || ls /usr/lib/postgresql/*/bin/$$1; } >/dev/null 2>&1; \
	absent() { for part in $(PARTS); do for each in $$(echo $${part%%:*} | tr , ' '); do \
	  has $$each || { echo $$part; break; }; done; done; }; \
	add() { DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
	  $$(for part; do echo $${part#*:} | tr , ' '; done) >/dev/null; }; \
	if [ -n "$$(absent)" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get -qq update; \
	then add $$(absent) || for part in $$(absent); do add $$part; done; fi; \
	for part in $$(absent); do \
	  echo "$$(echo $${part#*:} | tr , ' ') could not be installed: the tests of it will be skipped" >&2; done; \
	[ -z "$$(absent)" ] || [ "$$CI" != true ]

# pip asks the registry for every file of every version that it chooses, so the hashes serve all platforms and Pythons.
# In a Python of the oldest version that is supported: what that needs, the later ones have.
LOCK := build/lock/bin/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --upgrade --no-header \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host

lock:  ## renew packaging/daemon: what the daemon's environment is installed from, with hashes
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install -q --disable-pip-version-check pip-tools
	$(LOCK) -o packaging/daemon/requirements.lock pyproject.toml
	$(LOCK) -o packaging/daemon/build.lock packaging/daemon/build.in

format: $(VENV)/dev.done  ## let ruff format and sort
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## forget everything that was built
	rm -rf $(VENV) $(PEERS) build out

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "joulewise needs Python 3.11 or newer; try 'make PYTHON=python3.12 run'" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { echo "venv failed; on Debian: apt-get install python3-venv" >&2; exit 1; }

# Installed editable: the sources are what runs; the compiled part is rebuilt when its sources change.
NATIVE := $(shell find src/joulewise/native -name '*.c' -o -name '*.h' -o -name '*.cpp' -o -name CMakeLists.txt)

$(VENV)/run.done: pyproject.toml $(NATIVE) | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[plot]'
	touch $@

$(VENV)/demo.done: pyproject.toml $(NATIVE) | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[plot,server]'
	touch $@ $(VENV)/run.done

# Compiled as it is imported: of what the tests need, most is never loaded.
$(VENV)/dev.done: pyproject.toml $(NATIVE) | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-compile -e '.[dev]'
	touch $@ $(VENV)/run.done $(VENV)/demo.done $(VENV)/docs.done

# Looking at all tests compiles what they load: once, rather than in each of four workers.
$(VENV)/collected.done: $(VENV)/dev.done
	-@$(BIN)/python -m pytest -q --collect-only >/dev/null
	@touch $@

$(VENV)/docs.done: pyproject.toml $(NATIVE) | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[plot,server,docs]'
	touch $@ $(VENV)/run.done $(VENV)/demo.done

# Another environment, because these packages are never ours to need. Best effort: their tests skip without it.
$(PEERS)/done: tests/peers/requirements.txt
	@{ $(PYTHON) -m venv $(PEERS) \
	  && $(PEERS)/bin/pip install -q --disable-pip-version-check --no-compile torch==2.13.0 \
	  && $(PEERS)/bin/pip install -q --disable-pip-version-check --no-compile -r $< \
	  && touch $@; } || { rm -rf $(PEERS); [ "$$CI" = true ] && exit 1; \
	     echo "other tools could not be installed: their tests will be skipped" >&2; }
