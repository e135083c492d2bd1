# make demo    compare a real model with ONNX Runtime, layer by layer, and write report.html
# make test    everything that continuous integration runs
# make lint    style and types only
# make bench   measurements: start-up, engine against ONNX Runtime
# make docs    writes the pages that follow from the code

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

BIN := .venv/bin
WORKERS ?= 2
export MAKECMDGOALS  # scripts/venv.sh names it in its advice
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: demo test lint types bench docs clean

demo: .venv/ready-demo
	$(BIN)/graphdoc demo -o report.html

test: lint types
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

lint: .venv/ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready-test
	bash scripts/link_tree.sh
	$(BIN)/mypy

bench: .venv/ready-test
	$(BIN)/python -m pytest -q -s -p no:xdist tests/bench/bench_*.py

docs: .venv/ready-test
	$(BIN)/python scripts/commands_page.py

# The stamps make a second call quick; pyproject.toml decides what is installed. The test set-up holds all that
# the demo needs, so it counts for both.
.venv/ready-demo: pyproject.toml scripts/venv.sh
	bash scripts/venv.sh ort
	touch $@

.venv/ready-test: pyproject.toml scripts/venv.sh
	bash scripts/venv.sh test
	touch $@ .venv/ready-demo

clean:
	rm -rf .venv .tree build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis report.html
