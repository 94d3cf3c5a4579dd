# Everything runs in .venv, made on first use. constraints.txt holds the versions that the tests were run with.
PYTHON ?= python3
BIN := .venv/bin
# Two torch threads wait for each other when anything else uses the machine; the tests run two processes of one thread.
export OMP_NUM_THREADS ?= 1
# Dozens of processes load the package, and pytest rewrites its plugins: what is compiled once is kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo figures test coverage check lint format reference clean

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# What the demo needs: the core, the command line, figures.
.venv/small: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e '.[cli,plots]'
	@touch $@

.venv/installed: .venv/small
	$(PIP) -e '.[all,dev]'
	@touch $@

demo: .venv/small
	$(BIN)/python -m dapd.cli.demo

# The pictures of README and docs/lab.md, drawn anew; that of the page needs Chromium. The trade-off takes a GPU: docs/lab.md.
PASS ?= 12
figures: demo
	cp demo/trajectory.png docs/images/trajectory.png
	chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --virtual-time-budget=3000 --window-size=1300,1000 \
	  --screenshot=docs/images/viewer.png 'file://$(CURDIR)/demo/decoding.html#pass=$(PASS)'
	$(BIN)/python experiments/lab_segments.py --out docs/lab/segments --prompts 16

test: .venv/installed
	$(BIN)/python -m pytest -n 2

# The same, and which lines no test reaches; to count lines takes a third of the time again.
coverage: .venv/installed
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term

# The inner loop: what a change to the decoding core can break, without the slowest tests of it.
check: lint
	$(BIN)/python -m pytest -n 2 -m 'not slow' tests/decoding tests/strategies tests/test_canvas.py tests/test_g*.py tests/test_reference_*.py tests/test_settings.py tests/test_trace.py

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The page of all commands and settings, from the code that defines them.
reference: .venv/installed
	$(BIN)/python -m dapd.cli.reference docs/commands.md

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .coverage demo
