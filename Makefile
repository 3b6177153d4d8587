# `make help` lists the targets.
SHELL := /bin/bash
PYTHON ?= python3
NAME ?= quick
PORT ?= 5000
VENV := .venv
INSTALLED := $(VENV)/.installed
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

# `dvc exp run` commits to hidden git references, and fails without an identity.
ifeq ($(shell git config user.email),)
export GIT_AUTHOR_NAME := scaleguide
export GIT_AUTHOR_EMAIL := scaleguide@localhost
export GIT_COMMITTER_NAME := scaleguide
export GIT_COMMITTER_EMAIL := scaleguide@localhost
endif

# DVC has a column for every parameter and dependency besides.
COLUMNS_SHOWN := Experiment|Created|measured|failed|speedup|accuracy|parity_gap|hours|study\.name
SAY_COMMIT = echo "to keep these results in your fork: git add dvc.lock params.yaml data.dvc && git commit (docs/dvc.md)"

.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

install: $(INSTALLED)  ## the environment alone (.venv)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer with the venv module is needed (Debian: apt-get install python3-venv)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@echo "installing torch, tensorflow and the rest: some minutes and 8 GB"
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# DVC needs one; no git binary, though. Said before the installation.
.PHONY: repository
repository:
	@folder=$(CURDIR); until [ -e "$$folder/.git" ] || [ "$$folder" = / ]; do folder=$$(dirname "$$folder"); done; \
	  [ -e "$$folder/.git" ] || { \
	  echo "no git repository, which DVC needs: clone it with git, or make one here: git init && git add . &&" \
	    "git commit -m start; without one, python -m src.train trains (make install)"; exit 1; }

run: repository $(INSTALLED)  ## the study in params.yaml, from fetching data to the tables (`dvc repro`)
	@python -m src.software
	@python -m src.plan
	dvc repro
	@$(SAY_COMMIT)

test: $(INSTALLED)  ## the tests of some ten minutes: every strategy runs, lint included
	@echo "the quick tests: 8 to 14 minutes on 2 cores"
	python -m pytest -n 2 -m 'not slow and not long' $(PYTEST_ARGS)

test-all: $(INSTALLED)  ## all other tests, half an hour: kills, resumes, studies, types
	@echo "all other tests: 23 to 40 minutes on 2 cores"
	python -m pytest -n 2 -m 'slow and not long' $(PYTEST_ARGS)

study: repository $(INSTALLED)  ## another study as a DVC experiment: make study NAME=batch_sweep REPEAT=3
	@python -m src.software
	@python -m src.plan $(NAME) $(REPEAT)
	dvc exp run -S study=$(NAME)$(if $(REPEAT), -S study.repeat=$(REPEAT))
	@$(SAY_COMMIT)

experiments: $(INSTALLED)  ## the studies that ran as DVC experiments, in 120 columns
	@dvc exp show --no-pager --drop '(?!$(COLUMNS_SHOWN))'

retry: $(INSTALLED)  ## run the study's failed and skipped cells again, then the tables
	@set -e; for cell in $$(python -m src.aggregate --failed); do dvc repro -f -s "train@$$cell"; done
	dvc repro

ui: $(INSTALLED)  ## MLflow's UI on 127.0.0.1 (PORT=5000) over all runs, or the address of your server's
	@python -m src.ui --port $(PORT)

bench: $(INSTALLED)  ## against plain scripts of each kind, interleaved, pipelines against their ideal, and the long tests: six hours
	python -m bench $(BENCH_ARGS)
	$(if $(BENCH_ARGS),,python -m pytest -m long --timeout 3600)
	$(if $(BENCH_ARGS),,python -m bench.pipeline && python -m bench.tensorflow && python -m bench.exchange && python -m bench.feed && python -m bench.start && python -m bench.text_detection && python -m bench.unequal && python -m bench.sampling && python -m bench.links && python -m bench.link_accuracy && python -m bench.checkpoint_wait && python -m bench.mesh && python -m bench.schedules)

format: $(INSTALLED)  ## ruff: sort imports and format
	ruff check --select I --fix .
	ruff format .

lint: $(INSTALLED)  ## ruff: format and rules; which package imports which; types
	ruff format --check .
	ruff check .
	lint-imports
	mypy

clean:  ## what runs and studies made here; the environment and fetched raw data in the cache stay
	rm -rf downloads data prepared results runs software summary dvc_plots bench/out mlflow.db* mlartifacts .pytest_cache .ruff_cache .mypy_cache .import_linter_cache

.PHONY: help install run test test-all study experiments retry ui bench format lint clean
