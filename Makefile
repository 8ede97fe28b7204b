# make demo    the whole path on this machine, in its own virtual environment
# make test    everything; wants Linux, root, Go and Debian packages for the real cluster (.ci/run installs them)
# make check   static checks only

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help venv demo test check generate cluster-up cluster-down images test-gpu compat soak bench clean

PYTHON ?= python3
CACHE := $(or $(ROVER_KF_CACHE),$(HOME)/.cache/rover-kf)
# One environment serves every checkout that asks for the same packages: torch alone is gigabytes.
VENV_KEY := $(shell sed '/^.project.scripts/,$$d' pyproject.toml | cat - .ci/constraints.txt <($(PYTHON) -V) | sha256sum | cut -c1-16)
VENV := $(CACHE)/venv-$(VENV_KEY)
PY := $(VENV)/bin/python
EXTRAS := controller,torch,pipelines,notebooks,samples

export ROVER_KF_CACHE := $(CACHE)
export PYTHONPATH := $(CURDIR)
export PATH := $(VENV)/bin:$(PATH)
export PYTHONDONTWRITEBYTECODE := 1

help:
	@sed -n 's/^# //p' Makefile; grep -o '^[a-z-]*:' Makefile | tr -d ':' | tr '\n' ' '; echo

venv: $(VENV)/ready
	@ln -sfn $(VENV) .venv

$(VENV)/ready:
	rm -rf $(VENV)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q --upgrade 'pip>=25.1'
	$(PY) -m pip install -q --constraint .ci/constraints.txt --group dev '.[$(EXTRAS)]'
	$(PY) -m pip uninstall -q -y rover-kf
	rm -rf build/lib build/bdist.* rover_kf.egg-info
	touch $@

demo: venv
	$(PY) manifests/samples/demo.py --out build/demo.json

check: venv
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m mypy tests/typing/api.py
	$(VENV)/bin/lint-imports
	$(VENV)/bin/vermin -q -t=3.10- --violations --no-tips --eval-annotations \
	  rover_kf/__init__.py rover_kf/errors.py rover_kf/api rover_kf/trainer rover_kf/launcher rover_kf/checkpoint

# In CI nothing may skip: a test that finds a prerequisite missing fails there instead.
test: check
	$(PY) -m pytest

images: venv
	cd tests/cluster && $(PY) -m testcluster images

cluster-up: venv
	cd tests/cluster && $(PY) -m testcluster up

cluster-down: venv
	cd tests/cluster && $(PY) -m testcluster down

test-gpu: venv
	$(PY) -m pytest tests/gpu

clean:
	rm -rf build .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
