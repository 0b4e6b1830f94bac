# Each verb sets up what it needs; none relies on an activated environment.
#   PYTHON=python3.12 make test     picks the interpreter that makes .venv
#   VENV=DIR                        puts the environment elsewhere

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.octavo-installed
EXTRAS := router,worker,bench,dev

PORT ?= 8000
NAME ?= spine
CONCURRENCY ?= 1 8 32
TEST_PROCESSES ?= 2
BENCH_OUT ?= docs/results

# A name on PATH may be a shim for an interpreter that is not there, so each is run.
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3,$(shell \
	$(name) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' >/dev/null 2>&1 && echo $(name))))

.PHONY: help
help:  ## This list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: install
install: $(STAMP)  ## .venv with the pinned dependencies and octavo itself, editable.

$(STAMP): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then echo "Python 3.11 or 3.12 is needed; name one with PYTHON=..." >&2; exit 1; fi
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@echo "installing octavo[$(EXTRAS)] into $(VENV)"
	@$(BIN)/python -m pip install -qq -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

.PHONY: proto
proto: $(STAMP)  ## Regenerate the committed stubs from protos/*.proto.
	$(BIN)/python -m tools.stubs write

.PHONY: fmt
fmt: $(STAMP)  ## Format, and fix what the linter can.
	$(BIN)/ruff check --quiet --fix-only .
	$(BIN)/ruff format .

.PHONY: check check-format check-lint check-types check-imports check-stubs check-size
check: check-format check-lint check-imports check-stubs check-size check-types  ## Format, lint, types, import contracts, fresh stubs, size budget.

check-format: $(STAMP)
	$(BIN)/ruff format --check .

check-lint: $(STAMP)
	$(BIN)/ruff check .

check-types: $(STAMP)
	$(BIN)/mypy

check-imports: $(STAMP)
	$(BIN)/lint-imports --no-logo --cache-dir .mypy_cache/import-linter

check-stubs: $(STAMP)
	$(BIN)/python -m tools.stubs check

check-size: $(STAMP)
	$(BIN)/python -m tools.size_budget

# In the order of folders, whose last, tests/unit, has only files that are quick: files with most tests first, as is xdist's way, would leave
# the few long tests of the judges to the end, with one process at work.
.PHONY: test
test: $(STAMP)  ## Everything but soak: unit, contract, kernels, integration, e2e, architecture; in TEST_PROCESSES=2 processes.
	$(BIN)/python -m pytest -m 'not soak' -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(ARGS)

.PHONY: soak
soak: $(STAMP)  ## Real processes, faults, images and the compose stack (installs a container toolchain by apt where none is).
	$(BIN)/python -m pytest tests/soak -m soak --timeout 3600 $(ARGS)

.PHONY: accept
accept: $(STAMP)  ## NAME=spine: an acceptance run, which writes docs/results/NAME.json.
	$(BIN)/python -m tests.accept.$(NAME)

.PHONY: bench
bench: $(STAMP)  ## Throughput, TTFT, TPOT and ITL of the demo model at CONCURRENCY="1 8 32", and transformers' generate beside it, as JSON.
	@mkdir -p $(BENCH_OUT)
	$(BIN)/octavo bench serving --concurrency $(CONCURRENCY) --json $(BENCH_OUT)/bench-serving.json
	$(BIN)/octavo bench hf --json $(BENCH_OUT)/bench-hf.json

.PHONY: serve
serve: $(STAMP)  ## PORT=8000: the demo model on loopback.
	@exec $(BIN)/octavo serve demo --port $(PORT)

.PHONY: clean
clean:  ## Caches and build output; .venv stays.
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
