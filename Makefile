# `make demo` and `make test` need Python 3.11 to 3.13 and make, and set everything else up in .venv.
FIND_PYTHON = for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& echo $$python && break; done
PYTHON ?= $(shell $(FIND_PYTHON))
BIN := .venv/bin
PYTEST_ARGS ?=

.PHONY: demo test fuzz lint format clean

demo: .venv/installed
	$(BIN)/checkmate-tf demo

# These measure memory, which other work beside them changes (what XLA compiles to is not changed by it); a part
# without any test selected is no failure.
MEASURING = tests/emission tests/max_batch tests/measurement tests/training \
	tests/commands/test_demo.py tests/profiling/test_memory.py tests/tracing/test_loops.py

test: .venv/installed
	$(BIN)/python -m pytest -n 2 --dist loadfile $(MEASURING:%=--ignore=%) $(PYTEST_ARGS) || [ $$? -eq 5 ]
	$(BIN)/python -m pytest $(MEASURING) $(PYTEST_ARGS) || [ $$? -eq 5 ]

SECONDS ?= 600
fuzz: .venv/installed
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(FUZZ_ARGS)

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python .ci/typecheck.py

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/installed: setup.cfg pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.11, 3.12 or 3.13 found; install one, or say make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache demo-output
