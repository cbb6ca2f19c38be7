# Every chore of the project. `make` alone lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash

# The first interpreter that this project supports; PYTHON=... chooses another.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
EXAMPLE ?= digits
OUT ?= demo-out
RESULTS ?= docs/results
GPU_PARTS := $(addprefix gpu-,facts tests doctor account examples digests observing workers stability compile \
	graphs knobs ranks price repeats)
FUZZ_SECONDS ?= 60
# all that tests/fuzz/drive.py lists, where none is named
FUZZ_TARGETS ?=
# A test that hangs is named after so many seconds, instead of holding up everything.
PYTEST := $(BIN)/python -m pytest --timeout 900
# A process for each core and one more, since tests wait for the processes that they start; those of
# one file stay together, since they share trainings.
# WORKERS=0 runs them one after the other in one process, as a debugger wants it.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(len(os.sched_getaffinity(0)) + 1)' 2>/dev/null || echo auto)
# They come in the order of tests/conftest.py, not by their number of tests.
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# pip takes minutes: a person sees what it downloads, a log has only what went wrong
PIP_QUIET := $(shell [ -t 2 ] || echo --quiet)

.PHONY: help
help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

$(READY): pyproject.toml requirements/constraints.txt gate/system/version.py
	@test -n "$(PYTHON)" || { \
	  echo "error: no Python 3.11 to 3.13 with venv found: on Debian, apt install python3-venv; or set PYTHON=..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install $(PIP_QUIET) --disable-pip-version-check -c requirements/constraints.txt -e '.[torch,test]'
	@touch $@

.PHONY: setup
setup: $(READY) ## Make .venv with everything that the other targets need

.PHONY: demo
demo: $(READY) ## Gate an example on this machine and verify the sealed package (EXAMPLE=digits)
	@PATH="$(abspath $(BIN)):$$PATH" scripts/demo.sh $(EXAMPLE) $(OUT)

# Says at its end what a tier took beside its budget, which fails nothing.
TIER := $(BIN)/python scripts/tier.py
FAST := not gpu and not slow and not docker and not browser and not slurm
LAWS ?= tests

.PHONY: test
test: $(READY) ## Run the tests with coverage of gate/ (at least 90 %), ten minutes on two quiet cores
	$(BIN)/coverage erase
	REPRO_GATE_TESTS_PROGRESS=1 $(TIER) test $(PYTEST) $(PARALLEL) --cov=gate --cov-branch --cov-report=term --cov-fail-under=90 -m "$(FAST)"

.PHONY: test-smoke
test-smoke: $(READY) ## Run a few of the slow tests: ranks, a compiler, isolation by an account
	$(PYTEST) $(PARALLEL) -m "smoke and not gpu and not docker and not browser"

.PHONY: test-properties
test-properties: $(READY) ## Run the laws with 1,000 new examples each (LAWS=tests/checkpoint for one folder)
	HYPOTHESIS_PROFILE=nightly $(PYTEST) $(PARALLEL) -m "hypothesis and $(FAST)" $(LAWS)

.PHONY: planted-faults
planted-faults: $(READY) ## Plant sixty faults, one at a time, and see that the tests find each; all of them write docs/results/planted-faults.md (FAULTS="verdict text")
	$(BIN)/python scripts/planted_faults.py $(or $(FAULTS),--write $(RESULTS)/planted-faults.md)

.PHONY: nightly
nightly: $(READY) ## Run every tier that is too long for each change, resumable, into build/nightly/summary.json (PART=...)
	$(BIN)/python scripts/nightly.py $(PART)

.PHONY: unchanged
unchanged: $(READY) ## Hold that no result differs from the program of commit BASE=main (quarter of an hour)
	$(BIN)/python scripts/unchanged.py $(BASE)

.PHONY: test-slow
test-slow: $(READY) ## Run the rest: ranks, ways to start, compilers, whole measurements
	$(PYTEST) $(PARALLEL) -m "slow and not gpu and not docker and not browser and not slurm"

.PHONY: test-zoo
test-zoo: $(READY) ## Let the gate diagnose every planted fault, resume scripts that lack one thing, and write docs/results/diagnosis-zoo.md and resume-zoo.md (an hour and a half)
	$(PYTEST) $(PARALLEL) tests/zoo/test_checkpoints.py
	PATH="$(abspath $(BIN)):$$PATH" PYTHONPATH=.:tests/support:tests/zoo $(BIN)/python tests/zoo/zoo.py \
	  --write docs/results/diagnosis-zoo.md $(FAULTS); zoo=$$?; \
	PATH="$(abspath $(BIN)):$$PATH" PYTHONPATH=.:tests/support:tests/zoo $(BIN)/python tests/zoo/resumes.py \
	  --write docs/results/resume-zoo.md && exit $$zoo

.PHONY: test-pairs
test-pairs: shared-python ## Gate a small training with every two features, and write docs/results/pairs.md (two hours, resumable)
	PYTHONPATH=.:tests/support:tests/zoo $(BIN)/python tests/zoo/pairs.py --python $(abspath $(SHARED_BIN))/python \
	  --answers build/pairs.jsonl --write docs/results/pairs.md $(FEATURES)

.PHONY: test-frameworks
test-frameworks: $(READY) ## Install Lightning, transformers, accelerate and TensorBoard; run their tests
	$(BIN)/pip install --quiet --disable-pip-version-check -c requirements/constraints.txt -e '.[frameworks]'
	$(PYTEST) -q tests/frameworks tests/comparison/test_comparison_levels.py -m "not gpu"

# In an environment of its own, as most users have it: DVC's dependencies are not the gate's.
DATA_BIN := $(VENV)-data/bin

.PHONY: data-tools
data-tools: $(READY) ## Install DVC and an S3 server beside .venv
	test -x $(DATA_BIN)/python || $(PYTHON) -m venv $(VENV)-data
	$(DATA_BIN)/pip install --quiet --disable-pip-version-check -e '.[data,s3,test]'

.PHONY: test-data
test-data: data-tools ## Test declared data and a history with DVC, an S3 server and git-lfs
	PATH="$(abspath $(DATA_BIN)):$$PATH" $(PYTEST) -q -rs tests/data tests/commands/test_commands_verified_outputs.py
	$(DATA_BIN)/python -m pytest -q -rs -n 0 tests/fleet/test_fleet_remote_stores.py tests/pipelines/test_pipelines_prune.py

.PHONY: test-browser
test-browser: $(READY) ## Install playwright and look at the page in the system's Chromium (or $$CHROMIUM)
	$(BIN)/pip install --quiet --disable-pip-version-check -c requirements/constraints.txt -e '.[browser]'
	$(PYTEST) -q -rs tests/browser

.PHONY: lint
lint: $(READY) ## Formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

.PHONY: check
check: $(READY) ## Formatting, lint, types, layers and the fast tests, four minutes on two quiet cores
	@$(TIER) check $(MAKE) --no-print-directory lint fast

.PHONY: fast
fast: $(READY)
	$(PYTEST) -q $(PARALLEL) -m "not torch and $(FAST)" -x

# By name or path; one that is not here is reported and left out.
PYTHONS ?= python3.11 python3.12 python3.13

.PHONY: test-pythons
test-pythons: ## Run the fast tests under each supported Python, without torch where no CPU build can be had
	@WORKERS=$(WORKERS) scripts/test_pythons.sh $(PYTHONS)

TORCH ?= torch

.PHONY: newcomer
newcomer: ## Type what README and quick start say, on a bare Debian and Ubuntu (as root; TORCH=, SUITES=)
	@$(PYTHON) scripts/newcomer.py --torch "$(TORCH)" $(SUITES)

.PHONY: format
format: $(READY) ## Let the formatter and the safe fixes of the linter do their work
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: baselines
baselines: $(READY) ## Record the examples' baselines anew for this machine (needs a clean tree)
	@PATH="$(abspath $(BIN)):$$PATH" scripts/record_baselines.sh

.PHONY: goldens
goldens: $(READY) ## Write the expected texts of the reports anew; review the diff
	UPDATE_GOLDENS=1 $(PYTEST) -q tests/report

.PHONY: fuzz
fuzz: $(READY) ## Install the fuzzer and fuzz the readers, FUZZ_SECONDS=60 for each target
	$(BIN)/pip install --quiet --disable-pip-version-check -c requirements/constraints.txt -e '.[fuzz]'
	@targets="$(FUZZ_TARGETS)"; [ -n "$$targets" ] || \
	targets=$$(PYTHONPATH=.:tests/support $(BIN)/python tests/fuzz/drive.py --list 2>/dev/null) || exit 1; \
	for target in $$targets; do \
	  PYTHONPATH=.:tests/support $(BIN)/python tests/fuzz/drive.py $$target \
	    --seconds $(FUZZ_SECONDS) --corpus build/fuzz || exit 1; done

.PHONY: security
security: $(READY) ## Make every hostile attempt, as root, and write docs/security.md (several minutes)
	PYTHONPATH=.:tests/support:tests/hostile $(BIN)/python tests/hostile/page.py

.PHONY: vectors
vectors: $(READY) ## Write the test vectors of docs/digest.md anew; review the diff
	PYTHONPATH=.:tests/support $(BIN)/python tests/vectors/make.py

.PHONY: distribution
distribution: ## Build source archive and wheel into dist/, look at them with twine, install each into a bare environment
	@scripts/distribution.sh dist

.PHONY: settings-reference
settings-reference: $(READY) ## Write docs/settings.md anew from the schema of the settings
	$(BIN)/python scripts/settings_reference.py

.PHONY: container
container: $(READY) ## Build the action's image, run it as GitHub's runner does and through act (WHEELS=, ARCHITECTURE=)
	@$(BIN)/pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes -r requirements/act.txt \
		|| echo "act cannot be had here: what needs it is skipped"
	PYTHON=$(BIN)/python scripts/container.sh -q -rs

.PHONY: lint-action
lint-action: $(READY) ## Check action, workflows, Dockerfile and shell scripts (brings its linters along)
	PYTHON=$(BIN)/python scripts/lint_action.sh

.PHONY: gpu
gpu: ## Look at a CUDA machine, part by part, and write docs/results/gpu-NAME.md (VENV=, WHEELS=folder)
	@scripts/gpu.sh --results $(RESULTS) $(PART)

.PHONY: gpu-dry
gpu-dry: ## Run all of `make gpu` that a CPU can, and write no page
	@scripts/gpu.sh --dry --jobs 2 $(PART)

# One part of `make gpu`: make gpu-facts, make gpu-stability, ...
.PHONY: $(GPU_PARTS)
$(GPU_PARTS):
	@scripts/gpu.sh --results $(RESULTS) $(@:gpu-%=%)

.PHONY: bench-harness
bench-harness: $(READY) ## Measure the harness's own cost on this CPU and write docs/results/harness-cpu.md
	@mkdir -p docs/results
	PYTHONPATH=. $(BIN)/python benchmarks/harness.py --out docs/results/harness-cpu.md

# The glossary calls it the harness; this is the older name.
.PHONY: bench-guest
bench-guest: bench-harness

# In an environment that other accounts can read, for isolation `uid`; where the system's Python is
# none of ours, that of `make setup` is taken, and the page tells what could not be measured.
SHARED_PYTHON ?= $(firstword $(wildcard $(addprefix /usr/bin/python3.,11 12 13)) $(PYTHON))
SHARED_BIN := $(VENV)-shared/bin

.PHONY: shared-python
shared-python: $(READY)
	@test -x $(SHARED_BIN)/repro-gate || { $(SHARED_PYTHON) -m venv $(VENV)-shared && \
	  $(SHARED_BIN)/pip install --quiet --disable-pip-version-check -c requirements/constraints.txt -e '.[torch,container]' pytest; }
	@# as an installed package has it, also where the interpreter is told to write none
	@env -u PYTHONDONTWRITEBYTECODE $(SHARED_BIN)/python -m compileall -q gate

.PHONY: bench-gate
bench-gate: shared-python ## Measure the gate over its bare trainings, as root, and write docs/results/gate-cpu.md (IMAGE=, PARTS=)
	@mkdir -p docs/results
	PYTHONPATH=. $(SHARED_BIN)/python benchmarks/gate_time.py --out docs/results/gate-cpu.md \
		--image "$(IMAGE)" --parts $(PARTS)

PAIRS ?= 1000

.PHONY: pairs
pairs: shared-python ## Compare PAIRS=1000 strict pairs side by side under load, and write docs/results/side-by-side-cpu.md
	PYTHONPATH=benchmarks $(SHARED_BIN)/python scripts/side_by_side_pairs.py --pairs $(PAIRS) --counts build/side-by-side.jsonl \
		--out docs/results/side-by-side-cpu.md

.PHONY: bench-isolation
bench-isolation: $(READY) ## Measure, as root, what isolation adds to a run (docs/results/isolation-cpu.md)
	@mkdir -p docs/results
	PYTHONPATH=. $(BIN)/python benchmarks/isolation.py --out docs/results/isolation-cpu.md

.PHONY: bench-cluster
bench-cluster: $(READY) ## Measure, as root, what Slurm and 512 ranks add to a call (docs/results/cluster-slurm.md)
	@command -v slurmctld munged >/dev/null || apt-get install -qq -y --no-install-recommends slurm-wlm munge >/dev/null
	@mkdir -p docs/results
	PYTHONPATH=.:benchmarks:tests/support $(BIN)/python benchmarks/cluster.py --out docs/results/cluster-slurm.md

.PHONY: bench-diff
bench-diff: $(READY) ## Measure the difference of saved states and write docs/results/diff-cpu.md
	@mkdir -p docs/results
	PYTHONPATH=. $(BIN)/python benchmarks/difference.py --out docs/results/diff-cpu.md

.PHONY: bench-tolerances
bench-tolerances: $(READY) ## Simulate false alarms and misses of tolerances and write docs/results/tolerances-simulated.md
	@mkdir -p docs/results
	PYTHONPATH=. $(BIN)/python benchmarks/tolerance_rates.py --out docs/results/tolerances-simulated.md

.PHONY: bench-equivalence
bench-equivalence: $(READY) ## Simulate false alarms and misses of equivalence over seeds and write docs/results/equivalence-simulated.md
	@mkdir -p docs/results
	PYTHONPATH=. $(BIN)/python benchmarks/equivalence_rates.py --out docs/results/equivalence-simulated.md

.PHONY: bench-history
bench-history: $(READY) ## Measure service levels over a large history and write docs/results/history-cpu.md
	@mkdir -p docs/results
	PYTHONPATH=. $(BIN)/python benchmarks/history_scale.py --out docs/results/history-cpu.md

.PHONY: bench-digest
bench-digest: $(READY) ## Measure the digest of saved states and write docs/results/digest-cpu.md
	@mkdir -p docs/results
	test -x $(VENV)-signing/bin/python || $(PYTHON) -m venv $(VENV)-signing
	$(VENV)-signing/bin/pip install --quiet --disable-pip-version-check model-signing pyopenssl
	PYTHONPATH=. $(BIN)/python benchmarks/digest.py --out docs/results/digest-cpu.md \
		--signing $(VENV)-signing/bin/python

.PHONY: bench-package
bench-package: $(READY) ## Measure packing and verifying a large state and write docs/results/package-cpu.md
	@mkdir -p docs/results
	test -x $(VENV)-signing/bin/python || $(PYTHON) -m venv $(VENV)-signing
	$(VENV)-signing/bin/pip install --quiet --disable-pip-version-check model-signing pyopenssl
	PYTHONPATH=. $(BIN)/python benchmarks/package.py --out docs/results/package-cpu.md \
		--signing $(VENV)-signing/bin/python

.PHONY: bench-data
bench-data: $(READY) ## Measure the digest of declared data beside sha256sum and dvc, and write docs/results/data-digest-cpu.md
	@mkdir -p docs/results
	test -x $(VENV)-dvc/bin/python || $(PYTHON) -m venv $(VENV)-dvc
	$(VENV)-dvc/bin/pip install --quiet --disable-pip-version-check dvc
	PYTHONPATH=. $(BIN)/python benchmarks/data.py --out docs/results/data-digest-cpu.md \
		--dvc $(VENV)-dvc/bin/dvc

.PHONY: api-check
api-check: $(READY) ## Check every request to GitHub against its own OpenAPI description (needs npm)
	@scripts/api_check.sh $(BIN)

.PHONY: bundle-check
bundle-check: $(READY) ## Let Sigstore's JavaScript clients verify keyless seals (needs npm)
	@scripts/bundle_check.sh $(BIN)

.PHONY: interop
interop: $(READY) ## Let openssl, cosign, npm's and PyPI's clients verify seals and write docs/verification.md
	PYTHONPATH=.:tests/support:tests/interop $(BIN)/python tests/interop/interop.py --tools build/interop

# In an environment of its own: MLflow's dependencies are not the gate's.
.PHONY: interop-publish
interop-publish: $(READY) ## Publish to a real registry and a real MLflow server; skopeo and MLflow's client read it back
	@for tool in docker-registry skopeo; do command -v $$tool >/dev/null || \
	  apt-get install -qq -y --no-install-recommends $$tool >/dev/null 2>&1 || true; done
	@test -x $(VENV)-mlflow/bin/mlflow || { $(PYTHON) -m venv $(VENV)-mlflow && \
	  $(VENV)-mlflow/bin/pip install --quiet --disable-pip-version-check mlflow; } || true
	$(BIN)/python -W ignore::DeprecationWarning scripts/interop_publish.py --mlflow $(VENV)-mlflow/bin

.PHONY: ops
ops: $(READY) ## Run ops/ on real programs, as root: rules, routes, one page at a webhook, every expression of the dashboards
	@for tool in prometheus prometheus-pushgateway prometheus-alertmanager; do command -v $$tool >/dev/null || \
	  apt-get install -qq -y --no-install-recommends $$tool >/dev/null 2>&1 || true; done
	PYTHONPATH=. $(BIN)/python scripts/ops_check.py

.PHONY: slurm
slurm: $(READY) ## Gate on several nodes under Slurm's real daemons, as root; installs Debian's packages where they are missing
	@command -v slurmctld munged >/dev/null || apt-get install -qq -y --no-install-recommends slurm-wlm munge >/dev/null
	$(PYTEST) -n 0 -m slurm tests/slurm

.PHONY: screenshots
screenshots: ## Show the comment of each outcome as GitHub would, in docs/screenshots (needs npm, Chromium)
	@scripts/screenshots.sh

.PHONY: clean
clean: ## Remove what the targets made, the environment included
	rm -rf $(VENV) $(VENV)-3.* $(VENV)-shared $(VENV)-data $(VENV)-signing $(VENV)-mlflow .lint-action $(OUT) $(OUT)-keys repro-gate-out .pytest_cache .mypy_cache .ruff_cache .coverage* *.egg-info
