# `make check` is every check there is; `.ci/run` installs what it needs and runs the same.
PYTHON ?= python
# More than cores: many tests wait for a process to start or for a server to notice something.
TEST_WORKERS ?= 3

.PHONY: check static format lint types layers cycles sizes test sanitize figures test-fast docs reference wheels lock

check: static test sanitize

static: lint types layers cycles sizes

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

cycles:
	$(PYTHON) tools/import_cycles.py

sizes:
	$(PYTHON) tools/size_ratchet.py

# No test asserts on a clock, so they may share the cores with each other and with anything else.
test:
	$(PYTHON) -m pytest -n $(TEST_WORKERS) --dist loadgroup --cov --cov-report=term

sanitize:
	PYTHON=$(PYTHON) tools/sanitize_kernels.sh

# The site, in site/. What the tests of it check besides is in tests/docs.
docs: reference
	$(PYTHON) -m mkdocs build --strict

# Pages and pictures that follow from the code.
reference:
	$(PYTHON) tools/reference.py
	$(PYTHON) tools/diagrams.py

# Everything in its full size, of which CI runs the short form: load, chaos and attacks over HTTP (docs/reliability.md), hostile
# bodies, answers under 216 schemas, fifty conversations with a larger model, the whole product of the purity suite.
# Hours, on a machine that does nothing else.
figures:
	$(PYTHON) benchmarks/server_load.py
	$(PYTHON) benchmarks/scheduler.py
	$(PYTHON) benchmarks/attacked.py $(OCTAVO_TEST_ASSETS)/smollm2-135m-instruct-q4_1.gguf
	OCTAVO_TEST_FULL=1 $(PYTHON) -m pytest tests/server/test_access.py tests/server/test_hostile_bodies.py \
		tests/grammar/test_validity.py tests/parity/test_text_parity.py tests/purity/test_purity.py \
		tests/purity/test_instruction_sets.py \
		tests/conversations

test-fast:
	$(PYTHON) -m pytest -n $(TEST_WORKERS) -q -m "not assets"

# Both wheels and the source archive, in dist/: docs/releasing.md.
wheels:
	PYTHON=$(PYTHON) tools/build_wheels.sh

# deploy/*.lock, with the newest versions that fit.
lock:
	tools/lock.sh
