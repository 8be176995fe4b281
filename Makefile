# `make check` runs every check; `.ci/run` installs all requirements and runs the same checks.
PYTHON ?= python
# More than there are cores: many tests wait for a process to start or for a server to react.
TEST_WORKERS ?= 3

.PHONY: check static format lint types layers cycles sizes test coverage sanitize figures attack clients image-check test-fast docs reference wheels lock

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

# No test asserts on time, so tests may share the cores with each other and with other work.
test:
	$(PYTHON) -m pytest -n $(TEST_WORKERS) --dist loadgroup

# Run the tests and measure which lines they reach. Tracing takes two thirds more processor time, so CI does not do it.
coverage:
	$(PYTHON) -m pytest -n $(TEST_WORKERS) --dist loadgroup --cov --cov-report=term

sanitize:
	PYTHON=$(PYTHON) tools/sanitize_kernels.sh

# Build the documentation site in site/. tests/docs has further checks.
docs: reference
	$(PYTHON) -m mkdocs build --strict

# Generate documentation pages and diagrams from the code.
reference:
	$(PYTHON) tools/reference.py
	$(PYTHON) tools/diagrams.py

# Run the full size of what CI runs in short form: load, chaos and attacks over HTTP (docs/reliability.md), hostile bodies,
# answers under 216 schemas, fifty conversations with a larger model, all combinations of the purity suite.
# Takes hours and needs an otherwise idle machine.
figures:
	$(PYTHON) benchmarks/server_load.py
	$(PYTHON) benchmarks/scheduler.py
	$(PYTHON) benchmarks/attacked.py $(OCTAVO_TEST_ASSETS)/smollm2-135m-instruct-q4_1.gguf
	$(PYTHON) -m benchmarks.speculate $(OCTAVO_TEST_ASSETS)/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf \
		--speculate suffix
	$(PYTHON) -m benchmarks.speculate $(OCTAVO_TEST_ASSETS)/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf \
		--speculate auto --part code --part prose --batch 16 --prompts 144
	$(PYTHON) -m benchmarks.speculate $(OCTAVO_TEST_ASSETS)/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf \
		--speculate auto --part code --part prose --batch 48 --prompts 144
	OCTAVO_TEST_FULL=1 $(PYTHON) -m pytest tests/server/test_access.py tests/server/test_hostile_bodies.py \
		tests/grammar/test_validity.py tests/parity/test_text_parity.py tests/purity/test_purity.py \
		tests/purity/test_instruction_sets.py tests/parity/test_perplexity.py tests/test_preemption.py \
		tests/conversations

# Attack a real server with random actions for SECONDS, then check that the attacker finds every planted bug:
# see docs/reliability.md, "Standing attack". The same SEED gives the same actions.
SECONDS ?= 1800
SEED ?=
attack:
	PYTHONPATH=tests $(PYTHON) -m attacker --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))
	PYTHONPATH=tests $(PYTHON) -m attacker --fleet --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))
	PYTHONPATH=tests $(PYTHON) -m attacker --planted

# Run real clients of every API, newest versions, with a model that always calls the tool it is given: docs/clients.md.
# With MODEL=path, coding agents get that model instead.
clients:
	PYTHONPATH=tests $(PYTHON) -m clients $(if $(MODEL),codex opencode --model $(MODEL))

# Build the image on a stand-in base and run the pods of deploy/kubernetes. Needs root, buildah and uv.
image-check:
	$(PYTHON) tools/try_image.py $(OCTAVO_TEST_ASSETS)/smollm2-135m-instruct-q4_1.gguf

test-fast:
	$(PYTHON) -m pytest -n $(TEST_WORKERS) -q -m "not assets"

# Build both wheels and the source archive in dist/: see docs/releasing.md.
wheels:
	PYTHON=$(PYTHON) tools/build_wheels.sh

# Update deploy/*.lock to the newest versions that fit.
lock:
	tools/lock.sh
