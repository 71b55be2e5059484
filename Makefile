# Two commands on a fresh machine: `make run` and `make test`. Both create .venv when it is missing: the first with what
# seglog needs, the second adds the tools of development.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.installed-run
STAMP := $(VENV)/.installed
# An environment of its own for the tests with Spark: those of the other one prove that nothing else needs pyspark.
SPARK_VENV := .venv-spark
SPARK_STAMP := $(SPARK_VENV)/.installed
WITH_SPARK = SEGLOG_REQUIRE="$$SEGLOG_REQUIRE pyspark java" $(SPARK_VENV)/bin/pytest tests/spark

STUB := protocol/seglog_protocol/kafka/messages.pyi

# seglog as a release's wheel has it: its packages are found before those of the checkout, where there are any.
COMPILED := build/compiled/now
PACKAGES := PYTHONPATH="$$(cd $(COMPILED)/packages 2>/dev/null && pwd -P)"
ON_COMPILED = SEGLOG_WHEEL="$$(ls $(CURDIR)/$(COMPILED)/*.whl)" $(PACKAGES)
COMPILE = $(BIN)/python scripts/wheels.py --here

# `make soak` is made for so many minutes on two cores. What is counted in it grows and shrinks with them; the seed, which
# every lane of it prints, makes the same run again: make soak SOAK=120 SOAK_SEED=7
SOAK ?= 30
ifndef SOAK_SEED
SOAK_SEED := $(shell od -An -N3 -tu4 /dev/urandom | tr -d ' ')
endif
export SOAK SOAK_SEED
SOAKING := SEGLOG_SOAK_MINUTES=$(SOAK) SEGLOG_SOAK_SEED=$(SOAK_SEED)
DEEP := --hypothesis-profile=soak --hypothesis-seed=$(SOAK_SEED) --timeout 3600 --durations 30

# $(call lane,NAME,COMMAND): the command, and how long it took, however it ended.
lane = @echo "lane $(1)"; started=$$(date +%s); status=0; $(2) || status=$$?; \
  echo "lane $(1): $$(($$(date +%s) - started)) s"; exit $$status

# Of the tests with processes, a dozen that a broken daemon, command line or README would fail first.
CHOSEN := $(addprefix tests/process/, \
  $(addprefix broker/test_main.py::test_, \
    configuration_comes_from_file_environment_and_flags a_signal_stops_it_in_good_order \
    a_second_daemon_on_the_same_directory_is_refused both_ports_have_an_option_and_each_knows_the_others_clients) \
  broker/test_tls.py::test_sighup_replaces_the_certificate_and_cuts_nobody \
  faults/test_recovery.py::test_readyz_answers_503_with_the_progress_until_all_is_recovered \
  faults/test_added_partitions.py::test_a_follower_that_waits_at_the_end_reads_them_from_their_first_record \
  kafka/test_kafka_login_captures.py::test_a_client_is_let_in_by_what_it_sent \
  test_documents.py::test_commands_and_programs_print_what_the_document_says[README.md] \
  examples/test_programs.py::test_the_consumer_prints_every_record_and_the_gaps_between_them \
  clients/cli/test_round_trip.py::test_keyed_text_with_headers_and_tombstones_in_and_out)

# Of the unit tests, as many of the broker's in the lanes of clients and others that each takes as long; the others are
# those that are neither the broker's nor the clients'.
WITH_CLIENTS := $(addprefix tests/unit/broker/,api backup inspect)
OTHERS := tests/unit/broker/tasks $(wildcard tests/unit/test_*.py) \
  $(filter-out %/broker %/clients %/__pycache__,$(patsubst %/,%,$(wildcard tests/unit/*/)))

MISTAKES := tests/unit/simulation/test_durable_acks.py tests/unit/simulation/test_transactions.py

# For a make that runs its targets at once, and prints the output of each when it is done, where make can hold that back
# (from 4.0 on).
AT_ONCE := --no-print-directory --jobs $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) SIDE_BY_SIDE=1

# A test run starts hundreds of Pythons: what the first of them compiled is kept for the others, whatever the shell asks for.
unexport PYTHONDONTWRITEBYTECODE

# Only the parts of `make test` and of `make soak` run side by side.
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif
.PHONY: run test soak unit-broker unit-clients unit-others process spark browser unit-compiled soak-core soak-spark soak-alone interop check check-tests fmt bench constraints clean

# With compiled modules where there is a C compiler, else from the sources, which says a line.
# Options of seglogd: make run ARGS='--listen 127.0.0.1:7000 --kafka 127.0.0.1:7001'
ARGS ?=
run: $(RUN_STAMP)
	@echo "pages that draw the log: $(BIN)/seglog console, in a second terminal"
	@$(COMPILE) || [ $$? = 1 ]
	$(PACKAGES) $(BIN)/seglogd --set log.dir=./data --log-format console $(ARGS)

# A first look, at a broker that is gone afterwards: make quickstart ARGS=--keep
.PHONY: quickstart
quickstart: $(RUN_STAMP)
	@$(COMPILE) || [ $$? = 1 ]
	@$(PACKAGES) $(BIN)/seglog quickstart $(ARGS)

# What everyone runs: minutes. The folders of tests say what runs when; a test marked `soak` waits for `make soak`.
test: $(STAMP)
	@echo "check and the unit tests in three lanes run side by side; each prints its output when it is done"
	@$(MAKE) $(AT_ONCE) check unit-broker unit-clients unit-others

# The other half: processes, Spark, the unit tests on the compiled packages with many examples, and what takes minutes.
soak: $(STAMP) $(SPARK_STAMP)
	@echo "lanes run side by side; each prints its output when it is done"
	@$(MAKE) $(AT_ONCE) check-tests process spark browser packages
	@$(MAKE) $(AT_ONCE) unit-compiled soak-core soak-spark
	@$(MAKE) --no-print-directory soak-alone

# Lanes in place of workers: each test file is collected once. Tests of clients wait as often as they compute, so two cores
# have room for a third.
unit-broker: $(STAMP)
	$(call lane,unit-broker,$(BIN)/pytest -m 'not soak' tests/unit/broker \
	  $(addprefix --ignore ,$(WITH_CLIENTS) tests/unit/broker/tasks))

unit-clients: $(STAMP)
	$(call lane,unit-clients,$(BIN)/pytest -m 'not soak' tests/unit/clients $(WITH_CLIENTS))

unit-others: $(STAMP)
	@! $(BIN)/python -c 'import pyspark' 2>/dev/null || \
	  { echo "$(VENV) has pyspark, so tests would not show what needs it. Try: make clean"; exit 1; }
	$(call lane,unit-others,$(BIN)/pytest -m 'not soak' $(OTHERS) $(foreach one,$(CHOSEN),'$(one)'))

# What starts daemons and commands; they wait for each other more than they compute.
process: $(STAMP)
	$(call lane,process,$(BIN)/pytest -m 'not soak' -n 3 --dist worksteal tests/process)

# The console in this machine's own Chromium; skipped by name where there is none.
browser: $(STAMP)
	$(call lane,browser,$(BIN)/pytest tests/browser)

# On pip's Java, whatever the machine has; nothing is skipped for want of it.
spark: $(SPARK_STAMP)
	$(call lane,spark,$(WITH_SPARK) -m 'not soak')

# The unit tests on what a release has, with many examples of each property.
unit-compiled: $(STAMP) packages
	$(call lane,unit-compiled,$(ON_COMPILED) $(SOAKING) $(BIN)/pytest -m 'not soak' $(DEEP) tests/unit)

# One test at a time for each core, the longest first: most of them wait for daemons.
soak-core: $(STAMP) packages
	@echo "SOAK=$(SOAK) SOAK_SEED=$(SOAK_SEED)"
	$(call lane,soak-core,$(ON_COMPILED) $(SOAKING) $(BIN)/pytest -m 'soak' $(DEEP) -n auto --dist load --maxschedchunk 1 \
	  --ignore tests/soak/alone tests/soak tests/process tests/unit)

soak-spark: $(SPARK_STAMP)
	@echo "SOAK=$(SOAK) SOAK_SEED=$(SOAK_SEED)"
	$(call lane,soak-spark,$(SOAKING) $(WITH_SPARK) -m 'soak' $(DEEP))

# What measures a daemon has nothing beside it. It runs on the sources, as do simulations that make mistakes on purpose.
soak-alone: $(STAMP)
	@echo "SOAK=$(SOAK) SOAK_SEED=$(SOAK_SEED)"
	$(call lane,soak-alone,$(SOAKING) $(BIN)/pytest -m 'soak' $(DEEP) --capture=no tests/soak/alone $(MISTAKES))

# Clients and suites of others against our listeners. They come from their registries, into build/interop, the first time;
# what cannot be had is skipped by name, unless SEGLOG_REQUIRE names it.
interop: $(STAMP) $(SPARK_STAMP)
	$(call lane,interop,$(BIN)/pytest tests/interop)

# Every night: the soak for an hour with a seed of the day, and the clients, versions and suites of others.
.PHONY: night
night:
	@$(MAKE) --no-print-directory soak SOAK=60
	@$(MAKE) --no-print-directory interop

check: $(STAMP) $(STUB)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --cache-dir .mypy_cache/product broker protocol clients hatch_build.py
	$(BIN)/lint-imports
	$(BIN)/python scripts/house.py

# A wheel in dist/, for this Python and this machine, whose hottest modules are compiled; and the tests with it.
.PHONY: compiled
compiled: $(STAMP) packages
	@mkdir -p dist && rm -f dist/seglog-*-cp*.whl && cp $(COMPILED)/*.whl dist
	$(ON_COMPILED) $(BIN)/pytest tests/soak/test_compiled_wheel.py
	@$(MAKE) --no-print-directory unit-compiled

# What type checkers know of Kafka's messages; an install writes it as well.
$(STUB): $(STAMP) hatch_build.py protocol/seglog_protocol/kafka/definitions.txt
	@$(BIN)/python hatch_build.py && touch $@

# The wheel and its packages, for the tests: made where they are of other sources.
.PHONY: packages
packages: $(STAMP)
	@$(COMPILE)

# The wheels of a release in dist/, as far as the Pythons of this machine go: pure, and compiled for each of 3.11 to 3.14.
.PHONY: wheels
wheels:
	$(PYTHON) scripts/wheels.py

# Side by side with bare loops, several rounds, ratios: about ten minutes on a machine that does nothing else.
bench: $(STAMP)
	$(BIN)/python -m benchmarks

# Every document and the client's reference as pages, in build/docs: open index.html there, no server is needed. Those that
# are made of the code, of configuration, metrics, events and messages, are texts in build/pages as well.
.PHONY: docs
docs: $(STAMP)
	$(BIN)/python -m scripts.pages
	$(BIN)/python -m mkdocs build --strict

# Types of the tests, and of whatever is no product: they take as long as those of the product.
check-tests: $(STAMP) $(STUB)
	$(call lane,check-tests,$(BIN)/mypy && $(BIN)/python scripts/house.py --all)

fmt: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(RUN_STAMP): EXTRAS := broker,console,load
$(STAMP): EXTRAS := dev
$(SPARK_STAMP): EXTRAS := dev,spark-java
$(RUN_STAMP) $(STAMP) $(SPARK_STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "seglog needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "installing seglog[$(EXTRAS)] into $(@D)"
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@PIP_CONSTRAINT=constraints.txt $(@D)/bin/python -m pip install --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $(@D)/.installed-run $@

# The pinned environment, without index addresses: made anew from what pip resolves today.
constraints:
	rm -rf build/constraints && $(PYTHON) -m venv build/constraints
	build/constraints/bin/python -m pip install --quiet '.[dev,spark-java]'
	build/constraints/bin/python -m pip freeze --all --exclude seglog --exclude pip > constraints.txt

clean:
	rm -rf $(VENV) $(SPARK_VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
