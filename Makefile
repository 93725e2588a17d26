# Headrace. `make help` lists what can be done; `make demo` and `make test` set up everything they need by themselves.
SHELL := /bin/sh
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --disable-pip-version-check --use-pep517 --quiet
KERNELS := $(wildcard src/headrace/kernels/*.py src/headrace/sources/*/kernels/*.py src/headrace/kafka/avro/*.py src/headrace/kafka/message_kernels.py src/headrace/cql/decode/*.py src/headrace/sinks/clickhouse/cells/*.py src/headrace/sinks/kafka/debezium/json_kernels.py)
CODE := src tests testkit scripts/docs_site $(wildcard bench)

# Each stamp stands for a finished step and is older than nothing that the step read.
SYSTEM := $(VENV)/.system-packages
PACKAGES := $(VENV)/.python-packages
COMPILED := $(VENV)/.compiled-kernels
ARCHIVE := $(VENV)/.java-archive

# Test processes: most tests wait more than they compute. ARGS="-n0 -k NAME" runs some in one process, with their output as it comes.
WORKERS ?= 4
# The program of make test-chart.
HELM ?= helm
# How long `make soak` breaks things, and how many rounds of kill -9 follow. 0 leaves a part out.
SECONDS ?= 3600
KILLS ?= 500

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(SYSTEM) $(PACKAGES) $(COMPILED) $(ARCHIVE) ## Set up the environment: system packages, .venv, compiled kernels, Java's class archive

.PHONY: demo
demo: setup ## Replicate a live shop from a private MariaDB into embedded ClickHouse and verify it (about a minute)
	$(BIN)/headrace demo

.PHONY: settings-page
settings-page: setup ## Write the settings into the reference pages and the JSON schema
	$(BIN)/python scripts/write-settings-page

.PHONY: site
site: setup ## Build the documentation site into build/site; a broken link or anchor is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo 'site: open http://127.0.0.1:8000 after: python3 -m http.server --bind 127.0.0.1 --directory build/site 8000'

.PHONY: test
test: test-servers ## Run the fast tests: every capability on MariaDB and on Oracle MySQL, with Kafka, Debezium, Cassandra and a browser (fetched on the first run)
	$(BIN)/python -m pytest --fast -n $(WORKERS) --durations=15 --durations-min=1 $(ARGS)

.PHONY: test-all
test-all: test-servers ## Run all tests, the slow ones too
	$(BIN)/python -m pytest -n $(WORKERS) --durations=15 --durations-min=1 $(ARGS)

.PHONY: test-servers
test-servers: # Fetches wait for the network while kernels compile.
	@$(MAKE) --no-print-directory --jobs=3 setup mariadb-plugins prometheus debian-servers maven-servers

.PHONY: test-packages mariadb-plugins prometheus debian-servers maven-servers
test-packages: | $(SYSTEM)
	@scripts/install-system-packages $(PYTHON) test

mariadb-plugins: test-packages | $(PACKAGES)
	@$(BIN)/python -m testkit.servers.mariadb_plugins

prometheus: test-packages | $(PACKAGES)
	@$(BIN)/python -m testkit.servers.prometheus

debian-servers: | $(PACKAGES)
	@$(BIN)/python -m testkit.servers.debian_fetch

maven-servers: | $(PACKAGES)
	@$(BIN)/python -m testkit.servers.maven_fetch

.PHONY: test-fresh
test-fresh: ## Run make demo and make test on a bare Debian 12 and list what the set-up did not install (root; ALL=1 for make test-all; ONLY=demo or ONLY=test; ARGS="-k decode" for a part)
	$(PYTHON) -m testkit.machine.bare_machine $(if $(ONLY),--only $(ONLY)) $(if $(ALL),--all) --arguments='$(ARGS)'

.PHONY: test-image
test-image: setup ## Build the image of deploy/docker in a bare Debian 12, without Docker, and run it with a MariaDB, also read-only (root; about ten minutes)
	PYTHONPATH=. $(BIN)/python -m testkit.machine.image_check $(ARGS)

.PHONY: test-chart
test-chart: ## Lint the Helm chart and render it with its defaults and with tests/deploy/values.yaml (needs helm; HELM=PATH)
	@mkdir -p build/chart
	$(HELM) lint --strict deploy/helm/headrace
	$(HELM) template shop deploy/helm/headrace --kube-version 1.31.0 >build/chart/defaults.yaml
	$(HELM) template shop deploy/helm/headrace --kube-version 1.31.0 --values tests/deploy/values.yaml >build/chart/values.yaml

.PHONY: test-scylla
test-scylla: setup maven-servers ## Run the tests of ScyllaDB's log on a ScyllaDB that you have: HOST=host:9042 or scylla://user:password@host (its keyspaces test_* are made and dropped)
	@test -n "$(HOST)" || { echo 'say which: make test-scylla HOST=host:9042' >&2; exit 2; }
	@HEADRACE_SCYLLA='$(HOST)' $(BIN)/python -m pytest -m cql -n $(WORKERS) --durations=15 --durations-min=1 $(ARGS)

.PHONY: soak
soak: setup debian-servers maven-servers ## An hour of chaos: traffic and schema changes, kills of every process, cuts of every wire; ends with 0 differences and flat memory; then 500 rounds of kill -9 through every kind of pipe (SECONDS=600 KILLS=20, ARGS="--seed 7")
	PYTHONPATH=. $(BIN)/python -m testkit.soak --seconds $(SECONDS) --kills $(KILLS) $(ARGS)

.PHONY: soak-suites
soak-suites: setup debian-servers maven-servers ## Damaged input and crashes, at length and with other seeds each time (hours; ARGS="-k logs" for a part)
	HEADRACE_SOAK=1 HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -m "soak or scaled" $(ARGS)

.PHONY: record
record: setup debian-servers ## Record tests/golden again: logs of both servers, Debezium's records (testkit/recordings/scenarios.py, debezium_cases.py)
	HEADRACE_WRITE_FIXTURES=1 $(BIN)/python -m pytest -q tests/sources/mysql/rows/test_decode_fixtures.py
	@scripts/install-system-packages $(PYTHON) record
	PYTHONPATH=. $(BIN)/python -m testkit.recordings.debezium_recorder

.PHONY: lint
lint: setup ## Check style, types, import rules and known flaws of dependencies
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy --strict src
	MYPYPATH=src:. $(BIN)/mypy --strict --follow-imports=silent bench scripts/docs_site
	MYPYPATH=src:. $(BIN)/mypy --explicit-package-bases --follow-imports=silent --implicit-reexport testkit tests
	$(BIN)/lint-imports
	@$(BIN)/python scripts/audit_dependencies.py

.PHONY: bench
bench: setup debian-servers maven-servers ## Measure the reference workload and its peers
	PYTHONPATH=. $(BIN)/python -m bench $(ARGS)

.PHONY: clean
clean: ## Remove the environment and everything built or cached in this directory
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(SYSTEM): scripts/install-system-packages
	@scripts/install-system-packages $(PYTHON)
	@mkdir -p $(VENV) && touch $@

$(BIN)/python: | $(SYSTEM)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "headrace: Python 3.11 or newer is needed (set PYTHON=...)")'
	$(PYTHON) -m venv $(VENV)

$(PACKAGES): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[dev]'
	@touch $@

$(COMPILED): $(KERNELS) $(PACKAGES)
	$(BIN)/python -m headrace.kernels.compile
	@touch $@

$(ARCHIVE): $(PACKAGES) | $(COMPILED)
	$(BIN)/python -m headrace.spark.session.class_data_archive
	@touch $@
