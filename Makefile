# Everything a fresh machine needs: `make demo` and `make test` set up .venv themselves.
PY ?= python3
BIN := .venv/bin
export MPLBACKEND := Agg

.PHONY: demo test test-slow check bench tables docs clean help

help:            ## list the targets
	@grep -hE '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/'

.venv/base: pyproject.toml
	test -x $(BIN)/python || $(PY) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	touch $@

.venv/dev: .venv/base
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	touch $@

demo: .venv/base ## the paper's argument in miniature: tables and figures in demo/
	$(BIN)/uvd demo

test: .venv/dev  ## the quick tests
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

test-slow: .venv/dev ## learning checks of minutes, and Stable-Baselines3 on our tasks
	$(BIN)/python -m pip install -q --disable-pip-version-check torch==2.13.0 '.[slow]'
	$(BIN)/python -m pytest -m slow

check: .venv/dev ## format, lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test

bench: .venv/base ## speed and memory, as ratios measured in one run
	$(BIN)/python bench/update.py

docs: .venv/dev ## the site: build/docs/index.html
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[docs]'
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs

tables: .venv/base ## the numbers in README and docs, from the files under results/
	$(BIN)/python docs/tables.py

clean:
	rm -rf .venv demo build src/*.egg-info
