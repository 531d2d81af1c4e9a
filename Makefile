# `make demo` and `make test` need Python 3.11 to 3.13 and make, and set everything else up in .venv.
FIND_PYTHON = for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& echo $$python && break; done
PYTHON ?= $(shell $(FIND_PYTHON))
BIN := .venv/bin
PYTEST_ARGS ?=

.PHONY: demo test docs coverage compat release-check mutations fuzz lint format clean

demo: .venv/installed
	$(BIN)/checkmate-tf demo

# Tests that measure memory (not what XLA compiles to) run after the others, in processes of their own. A part without
# any test selected is no failure.
MEASURING = $(shell grep -rl --include='test_*.py' 'pytest.mark.measures_memory' tests)
RUN ?= $(BIN)/python

test: .venv/installed
	$(RUN) -m pytest -n 2 --dist worksteal -m 'not measures_memory' $(PYTEST_ARGS) || [ $$? -eq 5 ]
	$(RUN) -m pytest -n 2 --dist worksteal $(MEASURING) -m measures_memory $(PYTEST_ARGS) || [ $$? -eq 5 ]

# Builds the documentation without the network: open docs/_build/index.html. A warning is an error.
docs: .venv/docs-installed
	$(BIN)/python -m sphinx -W --keep-going --quiet -b html docs docs/_build

.venv/docs-installed: .venv/installed setup.cfg
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

# Counts lines and branches that the tests run, those of processes that they start included; compiled loops are not seen.
coverage: .venv/installed
	$(BIN)/coverage erase
	$(MAKE) test RUN='$(BIN)/coverage run'
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

SECONDS ?= 600
fuzz: .venv/installed
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(FUZZ_ARGS)

# Which of the oldest and newest Python, Keras and TensorFlow hold; PYTHONS="PATH ..." for those that PATH does not have.
compat: .venv/installed
	$(BIN)/python .ci/compat.py $(PYTHONS)

# Builds sdist and wheel, and tries the wheel in fresh environments; PYTHONS as above.
release-check: .venv/installed
	$(BIN)/python .ci/release_check.py $(PYTHONS)

mutations: .venv/installed
	$(BIN)/python -m tests.mutations

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
	rm -rf .venv build dist docs/_build docs/generated docs/jupyter_execute *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache demo-output .coverage*
