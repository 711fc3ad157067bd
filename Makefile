# Every target sets up what it needs. `make help` lists them.
PYTHON := .kairos/venv/bin/python
VLLM ?= $(shell grep -v '^\#' ci/versions.txt | head -1)
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help env model lint format types unit engine patch upstream e2e docs bench demo test clean

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' Makefile | sed 's/:.*## /\t/' | expand -t 12

env: ## Build the environment (vLLM's CPU build, NIXL, tools) once per machine, and this checkout's venv
	@ci/env.sh >/dev/null

model: env ## Convert the small model once per machine
	@$(PYTHON) ci/convert_model.py

lint: env ## Check style with ruff
	ci/lint.sh

format: env ## Apply ruff's fixes and formatting
	$(PYTHON) -m ruff check --fix-only --quiet . && $(PYTHON) -m ruff format .

types: env ## Check types with mypy --strict
	$(PYTHON) -m mypy

unit: env ## Run the tests that need neither vLLM nor a network
	ci/unit.sh $(ARGS)

engine: ## Run the engine tests on one vLLM (VLLM=0.31.0 picks another release)
	ci/test_engine.sh $(VLLM) $(ARGS)

patch: env ## Apply patches/ to a copy of vLLM and run the engine tests on it
	ci/patch_test.sh

upstream: env ## Run vLLM's own scheduler tests on the stock scheduler and on ours
	ci/upstream_tests.sh

e2e: env model ## Run the tests that drive a real CPU cluster
	ci/e2e.sh $(ARGS)

docs: env model ## Run the commands and snippets the documentation shows
	ci/docs_test.sh

bench: env ## Run the micro-benchmarks
	ci/bench.sh $(ARGS)

demo: env model ## Plain disaggregation against deflection on this machine: table, plot, report
	.kairos/venv/bin/kairos demo $(ARGS)

test: ## Everything above that checks something
	ci/test.sh

clean: ## Remove what the targets wrote into this checkout (the cache outside it stays)
	rm -rf .kairos kairos-demo build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
