# Needs Python 3.11+ (with venv and pip), make and git. `make help` lists the targets.

PYTHON ?= python3
# The file that `make up` runs; without one, two engines of the small model and a shared cache.
CONFIG ?= $(wildcard anbar.yaml)
NAME ?= main-job
# Tests that take seconds of waiting rather than of computing run side by side.
JOBS ?= 3

# Of tests on real vLLM, two groups run side by side (tests/engine/conftest.py), with up to four engines
# at once, some 12 GB; LANES=1 runs one after the other.
LANES ?= 2
# An engine that is calibrated must be idle, and so must what it runs on.
ALONE := tests/engine/test_calibrate.py

VENV := .venv/bin
ENGINE := .venv-engine/bin
PYTEST := $(VENV)/python -m pytest

.DEFAULT_GOAL := help
.NOTPARALLEL: # two cores are taken by one target already, and the output of several would mix
.PHONY: help up demo test test-engine test-faults test-ceph soak-tiers check unit integration fuzz soak-router e2e bench clean distclean install install-router install-engine install-lmcache model

help: ## what can be made
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1|/' | while IFS='|' read -r a b; do printf '  %-14s %s\n' "$$a" "$$b"; done

up: install ## install what is missing, then run the whole stack until Ctrl-C
	@exec $(VENV)/anbar up $(if $(CONFIG),--config $(CONFIG))

demo: install-router ## the same on emulated engines: seconds, no torch, no vLLM
	@exec $(VENV)/anbar up --emulated $(if $(CONFIG),--config $(CONFIG))

test: install check unit model integration e2e ## everything that must hold: checks, unit, integration, real vLLM

test-engine: install model $(if $(ANBAR_ENGINE_PYTHON),,install-lmcache) ## the slower tests on real vLLM
	@echo "== tests on real vLLM, minutes"
	@$(PYTEST) $(ALONE) --timeout 900 -v
	@$(PYTEST) tests/engine --ignore $(ALONE) --timeout 900 -v $(if $(filter-out 1,$(LANES)),-n $(LANES))

# STORE=files (or valkey, s3, cluster, redis) for one of them; benchmarks/results/test-faults.json keeps the last results.
# redis-server is Debian's; as root it is installed first.
test-faults: install model ## every fault of every kind of store under real vLLM, half an hour
	@command -v redis-server >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq --no-install-recommends redis-server; } || { echo "first, as root: apt-get install --no-install-recommends redis-server"; exit 1; }
	@ANBAR_FAULTS=all $(PYTEST) tests/engine/test_faults.py --timeout 1800 -v $(if $(STORE),-k $(STORE))

CEPH := ceph-mon ceph-mgr ceph-osd radosgw ceph-common
# Debian's packages; as root they are installed first.
test-ceph: install-router ## the S3 store on a real Ceph of one node, minutes
	@command -v radosgw >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq --no-install-recommends $(CEPH); } || { echo "first, as root: apt-get install --no-install-recommends $(CEPH)"; exit 1; }
	@ANBAR_S3_SERVER=ceph timeout 1800 $(PYTEST) tests/integration/s3 --timeout 600 -v

MINUTES ?= 30
soak-tiers: install ## the tiers, without a model, over stores that fail at random: MINUTES=30
	$(VENV)/python -m tests.engine.soak_tiers $(MINUTES)

check: install-router ## format, lint, types, layers, sizes, pins
	@echo "== checks"
	@$(VENV)/ruff format --check src tests scripts benchmarks
	@$(VENV)/ruff check src tests scripts benchmarks
	@echo "mypy (the first time a minute)"
	@$(VENV)/mypy
	@$(VENV)/lint-imports --no-logo
	@$(VENV)/python scripts/size_gate.py
	@$(VENV)/python scripts/check_requirements.py

unit: install-router ## unit tests
	@echo "== unit tests"
	@$(PYTEST) tests/unit -n $(JOBS) --dist worksteal

integration: install-router ## router and stack against emulated engines
	@echo "== integration tests, about two minutes"
	@$(PYTEST) tests/integration -n $(JOBS) --dist worksteal

fuzz: install-router ## 10,000 random requests, and three minutes of what the OpenAPI document allows or not
	@ANBAR_FUZZ_REQUESTS=10000 ANBAR_FUZZ_S=180 $(PYTEST) tests/integration/test_fuzz.py tests/integration/test_openapi.py -n 2 --timeout 7200

soak-router: install-router ## 100,000 requests of all kinds: the router's memory stays, some 30 minutes
	$(VENV)/python -m benchmarks.router_soak

e2e: install model ## the main job on real vLLM
	@echo "== end-to-end tests on real vLLM, minutes"
	@$(PYTEST) tests/e2e --timeout 600 -v

bench: install model ## make bench NAME=main-job: prints a table, writes benchmarks/results/NAME.json
	$(VENV)/python -m benchmarks.$(subst -,_,$(NAME))

# ANBAR_ENGINE_PYTHON names another installation of vLLM: then none is made here.
install: install-router $(if $(ANBAR_ENGINE_PYTHON),,install-engine) ## both environments

install-router:
	@$(PYTHON) scripts/install.py .venv requirements/base.txt requirements/dev.txt

install-engine:
	@$(PYTHON) scripts/install.py .venv-engine requirements/engine.txt

install-lmcache: install-engine
	@$(PYTHON) scripts/install.py .venv-lmcache --over .venv-engine requirements/lmcache.txt

model: install ## unpack the small model
	@$(VENV)/anbar model >/dev/null

# .anbar/run stays: by what is noted there, the next `anbar up` removes the remains of a killed stack.
clean: ## remove caches and what runs left; environments and the model stay
	@if $(VENV)/anbar status --set state_dir=.anbar >/dev/null 2>&1; then echo "a stack runs here; first: $(VENV)/anbar down --set state_dir=.anbar"; exit 1; fi
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find src tests scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf .anbar/logs .anbar/store

distclean: clean ## clean, and remove environments and the model too
	rm -rf .venv .venv-engine .venv-lmcache .anbar
