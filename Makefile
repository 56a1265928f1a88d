# Every target sets the machine up first: scripts/setup.sh does nothing when that is done already.
BIN = JAVA_HOME="$$(cat .venv/java-home)" .venv/bin

# Images for containers often set it. Each of the many processes of a run would then compile all modules by itself.
unexport PYTHONDONTWRITEBYTECODE

# Processes of a run of the tests, each with a Spark of its own (2 GB). On two cores three take less time than two.
# What shares fixtures stays together (tests/conftest.py).
WORKERS ?= 3
TOGETHER = -n $(WORKERS) --dist loadscope --no-loadscope-reorder

# What meets other versions first: Kafka's source and its progress, batches that are cut off, commits by Spark, views.
CORE = tests/chaos/test_lost_state.py tests/engine/source/test_source.py tests/engine/status/test_status_of_a_run.py \
	tests/engine/source/test_missing_topics.py tests/engine/commit/test_replay.py tests/engine/commit/test_committers.py \
	tests/engine/commit/test_ledger.py tests/engine/outbox/test_apply.py tests/engine/views/test_views_of_routes.py \
	tests/delta/test_spark_commits.py

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-twins test-all test-cluster test-page test-versions test-pair check pins bench bench-full docs zip clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

setup: ## Set the machine up: .venv, pinned packages, jars
	@scripts/setup.sh $(if $(filter demo,$(MAKECMDGOALS)),--without-archive)

demo: setup ## A real Kafka, schema registry and API, seven games, their tables, in two minutes or three; KEEP=1 keeps the page up
	@$(BIN)/python -m router_demo $(if $(KEEP),--keep)

test: setup ## Run the tests, all but the slow ones
	@$(BIN)/pytest $(TOGETHER) -m "not slow"

test-fast: setup ## Run the tests that need no Java: seconds
	@$(BIN)/pytest -m "not spark and not slow"

test-twins: setup ## Run the tests that make test leaves out because it has a smaller one of the same
	@$(BIN)/pytest $(TOGETHER) -m twin

test-all: setup ## Run all tests, the slow ones too, and property tests with all of their examples
	@$(BIN)/pytest $(TOGETHER) --hypothesis-profile=thorough

test-cluster: setup ## Run the tests on a standalone Spark cluster of processes (a part of test-all)
	@$(BIN)/pytest tests/chaos/test_cluster.py

test-page: setup ## Run the tests of the page of a stream, in Chromium (a part of test)
	@$(BIN)/pytest tests/browser tests/engine/status/test_status_page.py

test-versions: setup ## Run the tests with other Pythons, Sparks and Deltas
	@scripts/versions.sh 3.10 4.1.1 4.3.1
	@scripts/versions.sh 3.13 4.0.0 4.0.1

test-pair: setup ## Run the core of the tests with one other Python, Spark and Delta
	@scripts/versions.sh 3.10 4.1.1 4.3.1 $(CORE)

check: setup ## Check style, formatting, types, the direction of imports and the size of each folder
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python scripts/statements.py

bench: setup ## Measure a short version of the benchmarks: twenty minutes
	@$(BIN)/python -m benchmarks

bench-full: setup ## Measure everything, baselines included
	@$(BIN)/python -m benchmarks --full

pins: setup ## Write constraints.txt again after a change of pyproject.toml: versions that stand in it stay
	@.venv/bin/uv pip compile pyproject.toml --extra dev --extra java --universal --python-version 3.10 --no-python-downloads \
		--generate-hashes --no-emit-index-url --no-annotate --custom-compile-command "make pins" --quiet -o constraints.txt

docs: setup ## Build the site of the documentation into .site/, from docs/ alone; a dead link stops it
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open .site/index.html, or: $(BIN)/mkdocs serve"

zip: setup ## Build dist/*.whl and the same as spark_event_router.zip for spark-submit --py-files
	@rm -rf dist
	@$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .
	@cp dist/*.whl dist/spark_event_router.zip
	@ls -l dist

clean: ## Remove what can be made again; .venv and the fetched jars stay
	@rm -rf .site artifacts build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache spark-warehouse
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
