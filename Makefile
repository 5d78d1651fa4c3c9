# Everything a fresh machine needs: `make demo` and `make test` set up .venv themselves.
PY ?= python3
BIN := .venv/bin
# Errors only, and the versions that were tested.
PIP = $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
export MPLBACKEND := Agg

.PHONY: setup demo test test-slow check bench tables docs constraints clean help

help:            ## list the targets
	@grep -hE '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/'

.venv/base: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PY) -m venv .venv
	$(PIP) -e .
	touch $@

.venv/dev: .venv/base
	$(PIP) -e '.[dev]'
	touch $@

setup: .venv/base ## .venv with the package; activate it with: . .venv/bin/activate

demo: .venv/base ## the paper's argument in miniature: tables and figures in demo/
	$(BIN)/uvd demo

test: .venv/dev  ## the quick tests
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

test-slow: .venv/dev ## learning checks of minutes, and Stable-Baselines3 on our tasks
	$(PIP) -e '.[dev,slow,docs,ray]'
	command -v chromium && command -v chromedriver || \
	  { apt-get update -q && apt-get install -y -q chromium chromium-driver; }
	$(BIN)/python -m pytest -m slow

check: .venv/dev ## format, lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test

bench: .venv/base ## speed and memory, as ratios measured in one run
	$(BIN)/python bench/update.py
	$(BIN)/python bench/report.py

docs: .venv/dev ## the site: build/docs/index.html
	$(PIP) -e '.[docs]'
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs

tables: .venv/base ## the numbers in README and docs, from the files under results/
	$(BIN)/python docs/tables.py

constraints: .venv/dev ## constraints.txt: the versions in .venv, after the tests have passed
	head -n 1 constraints.txt > .venv/versions
	$(BIN)/python -m pip freeze --exclude-editable | grep -v ' @ ' | sed 's/+cpu$$//' >> .venv/versions
	mv .venv/versions constraints.txt

clean:
	rm -rf .venv demo build src/*.egg-info
