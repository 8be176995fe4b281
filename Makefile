# `make check` is every check there is; `.ci/run` installs what it needs and runs the same.
PYTHON ?= python

.PHONY: check static format lint types layers sizes test sanitize test-fast docs reference wheels lock

check: static test sanitize

static: lint types layers sizes

format:
	$(PYTHON) -m ruff format src tests tools benchmarks examples
	$(PYTHON) -m ruff check --fix src tests tools benchmarks examples

lint:
	$(PYTHON) -m ruff format --check src tests tools benchmarks examples
	$(PYTHON) -m ruff check src tests tools benchmarks examples
	$(PYTHON) tools/changelog.py

types:
	$(PYTHON) -m mypy

layers:
	$(PYTHON) -c "from importlinter.cli import lint_imports_command; lint_imports_command()" --no-cache

sizes:
	$(PYTHON) tools/size_ratchet.py

# Tests that assert on a clock run alone, after the others and without coverage, so that nothing slows them. Each may
# try again twice: a neighbour on the machine makes a figure worse, never better, while what is slow is slow each time.
# No other test may.
test:
	$(PYTHON) -m pytest -n 2 --dist loadgroup -m "not timing" --cov --cov-report=term
	$(PYTHON) -m pytest -m timing -s --reruns 2

sanitize:
	PYTHON=$(PYTHON) tools/sanitize_kernels.sh

# The site, in site/. What the tests of it check besides is in tests/docs.
docs: reference
	$(PYTHON) -m mkdocs build --strict

# Pages and pictures that follow from the code.
reference:
	$(PYTHON) tools/reference.py
	$(PYTHON) tools/diagrams.py

test-fast:
	$(PYTHON) -m pytest -n 2 -q -m "not timing and not assets"

# Both wheels and the source archive, in dist/: docs/releasing.md.
wheels:
	PYTHON=$(PYTHON) tools/build_wheels.sh

# deploy/*.lock, with the newest versions that fit.
lock:
	tools/lock.sh
