# make demo    the whole path on this machine, in its own virtual environment
# make test    everything; wants Linux, root, Go and Debian packages for the real cluster (.ci/run installs them)
# make check   static checks only

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help venv packages programs demo check test test-fast test-cluster images cluster-up cluster-down \
  cluster-status test-gpu compat soak fuzz audit bench bench-checkpoint bench-checkpoint-states bench-checkpoint-pods bench-rendezvous bench-sharding bench-recommendation bench-scaling bench-elastic \
  bench-controller bench-tfjob docs clean

PYTHON ?= python3
CACHE := $(or $(ROVER_KF_CACHE),$(HOME)/.cache/rover-kf)
# One environment serves every checkout that asks for the same packages: torch alone is gigabytes.
VENV_KEY := $(shell sed '/^.project.scripts/,$$d' pyproject.toml | cat - .ci/requirements.txt <($(PYTHON) -V) | sha256sum | cut -c1-16)
VENV := $(CACHE)/venv-$(VENV_KEY)
PY := $(VENV)/bin/python

export ROVER_KF_CACHE := $(CACHE)
# What mypy has read of torch and others serves every checkout, too.
export MYPY_CACHE_DIR := $(VENV)/mypy
export PYTHONPATH := $(CURDIR)
export PATH := $(VENV)/bin:$(PATH)

help:
	@sed -n 's/^# //p' Makefile; grep -o '^[a-z-]*:' Makefile | tr -d ':' | tr '\n' ' '; echo

venv: $(VENV)/ready
	@ln -sfn $(VENV) .venv

$(VENV)/ready:
	@.ci/venv $(PYTHON) $(VENV)

demo: venv
	$(PY) manifests/samples/demo.py --out build/demo.json

check: venv
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m mypy tests/typing/api.py
	$(VENV)/bin/lint-imports
	$(VENV)/bin/vermin -q -t=3.10- --violations --no-tips --eval-annotations \
	  rover_kf/__init__.py rover_kf/errors.py rover_kf/api rover_kf/trainer rover_kf/launcher rover_kf/checkpoint rover_kf/datasets rover_kf/data_sharding rover_kf/elastic rover_kf/dry_run rover_kf/system

# Programs of the system that the cluster needs; who is not root has to have them.
packages:
	@if [ "$$(id -u)" = 0 ]; then $(PYTHON) tests/cluster/testcluster/packages.py; fi

# Compiled before the first test: a build of minutes on all cores must not disturb timings either.
programs: packages venv
	@if command -v go >/dev/null; then cd tests/cluster && $(PY) -m testcluster build; fi

# tests/gpu, compat and soak have targets of their own.
# The longest come first, so that no worker is alone with them at the end. Three on two cores: most
# of them wait most of the time.
HERE := $(addprefix tests/,faults components notebooks embedded properties trust unit)

# In CI nothing may skip: a test that finds a prerequisite missing fails there instead.
# What promises times comes alone, and so does the cluster.
test: programs test-fast
	$(PY) -m pytest tests/cluster

test-fast: check
	$(PY) -m pytest -n 3 --dist worksteal -m "not alone" $(HERE)
	$(PY) -m pytest -m alone tests/embedded tests/faults

test-cluster: packages venv
	$(PY) -m pytest tests/cluster

images: packages venv
	cd tests/cluster && $(PY) -m testcluster images

cluster-up: packages venv
	cd tests/cluster && $(PY) -m testcluster up

cluster-down: venv
	cd tests/cluster && $(PY) -m testcluster down

cluster-status: venv
	cd tests/cluster && $(PY) -m testcluster status

# Not in `make test`: they need a GPU, other versions, an hour, or a quiet machine.
test-gpu: venv
	$(PY) -m pytest tests/gpu

# Other versions of torch and Python, then the whole suite of the cluster on the oldest Kubernetes.
compat: packages venv
	$(PY) -m pytest -s tests/compat
	ROVER_KF_TEST_KUBERNETES=1.29 $(PY) -m pytest -s tests/cluster

notebooks: venv
	$(PY) -m pytest tests/notebooks --at-length

soak: venv
	$(PY) -m pytest -s tests/soak

# Parsers and servers against other bytes in each round, for so many seconds: make fuzz BUDGET=3600
fuzz: venv
	@end=$$((SECONDS + $(or $(BUDGET),600))); round=0; while [ $$SECONDS -lt $$end ]; do round=$$((round + 1)); \
	  env -u CI ROVER_KF_FUZZ=$(or $(EXAMPLES),200) $(PY) -m pytest -q -s -x --timeout=1800 \
	    tests/properties/test_fuzz_*.py tests/faults/test_hostile_requests.py; \
	done; echo "$$round rounds of $(or $(EXAMPLES),200) examples each found nothing"

# What the images consist of (build/sbom, CycloneDX), and whether any of it is known to be vulnerable.
audit:
	@.ci/audit $(PYTHON) $(CACHE) build/sbom

# Pictures of docs/report.md: the demo's report in a real Chromium.
.PHONY: screenshots
screenshots: packages venv
	$(PY) docs/screenshots.py

bench-checkpoint: venv
	$(PY) benchmarks/checkpoint.py --out build/bench/checkpoint.json

# DIR of measured step times: make bench-recommendation TRACES=DIR
bench-recommendation: venv
	$(PY) benchmarks/recommendation.py $(if $(TRACES),--traces $(TRACES)) --out build/bench/recommendation.json

bench-sharding: venv
	$(PY) benchmarks/sharding.py --out build/bench/sharding.json

# The same, and workloads of a cluster (docs/scaling.md); about three minutes on one core.
bench-scaling: venv
	$(PY) benchmarks/scaling.py --traces $(or $(TRACES),$(error make bench-scaling TRACES=DIR: docs/scaling.md says what DIR has to hold)) --out build/bench/scaling.json

bench-checkpoint-states: venv
	$(PY) benchmarks/checkpoint_states.py --out build/bench/checkpoint-states.json

bench-checkpoint-pods: venv
	$(PY) benchmarks/checkpoint_pods.py --out build/bench/checkpoint-pods.json

bench-rendezvous: venv
	$(PY) benchmarks/rendezvous.py --out build/bench/rendezvous.json

# Starts the real cluster; goes on where it was. About two hours with three repeats of both sides.
bench-elastic: packages venv
	$(PY) benchmarks/elastic.py --out build/bench/elastic.json

# A control plane of its own with simulated nodes, beside no other; about an hour for both sizes.
bench-controller: packages venv
	$(PY) benchmarks/controller.py --out build/bench/controller.json

# Starts the real cluster, with TensorFlow from the package index; goes on where it was. About half an hour.
bench-tfjob: packages venv
	$(PY) benchmarks/tfjob.py --out build/bench/tfjob.json

# All of them; hours. Without TRACES those that need measured tables are left out.
bench: bench-checkpoint bench-checkpoint-states bench-checkpoint-pods bench-rendezvous bench-sharding bench-recommendation $(if $(TRACES),bench-scaling) bench-elastic bench-controller bench-tfjob

# The site, in an environment of its own; a broken link or a wrong docstring is an error.
DOCS_KEY := $(shell cat docs/requirements.txt <($(PYTHON) -V) | sha256sum | cut -c1-16)
DOCS_VENV := $(CACHE)/docs-$(DOCS_KEY)

docs: venv
	@.ci/venv $(PYTHON) $(DOCS_VENV) docs/requirements.txt
	ROVER_KF_PACKAGES=$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
	  $(DOCS_VENV)/bin/python -m sphinx -q -W --keep-going -c docs -d build/doctrees . build/docs
	@echo "build/docs/docs/index.html"

clean:
	rm -rf build .venv .import_linter_cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
