# `make check` is every check there is; `.ci/run` installs what it needs and runs the same.
PYTHON ?= python

.PHONY: check format lint types layers sizes test sanitize test-fast docs reference

check: lint types layers sizes test sanitize

format:
	$(PYTHON) -m ruff format src tests tools benchmarks examples
	$(PYTHON) -m ruff check --fix src tests tools benchmarks examples

lint:
	$(PYTHON) -m ruff format --check src tests tools benchmarks examples
	$(PYTHON) -m ruff check src tests tools benchmarks examples

types:
	$(PYTHON) -m mypy

layers:
	$(PYTHON) -c "from importlinter.cli import lint_imports_command; lint_imports_command()" --no-cache

sizes:
	$(PYTHON) tools/size_ratchet.py

# Tests that assert on a clock run alone, after the others and without coverage, so that nothing slows them.
test:
	$(PYTHON) -m pytest -n 2 --dist loadgroup -m "not timing" --cov --cov-report=term
	$(PYTHON) -m pytest -m timing -s

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
