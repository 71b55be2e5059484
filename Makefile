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
WITH_SPARK = SEGLOG_REQUIRE="$$SEGLOG_REQUIRE pyspark java" $(SPARK_VENV)/bin/pytest

# seglog as a release's wheel has it, and the tests of compiled modules and of what stands on them.
COMPILED := build/compiled
COMPILED_STAMP := $(COMPILED)/.built
ON_COMPILED = SEGLOG_WHEEL="$$(ls $(CURDIR)/$(COMPILED)/*.whl)" PYTHONPATH=$(CURDIR)/$(COMPILED)/packages
OF_COMPILED := tests/protocol tests/broker tests/clients tests/members tests/simulation tests/test_client_document.py

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

# For a make that runs its targets at once, and prints the output of each when it is done, where make can hold that back
# (from 4.0 on).
AT_ONCE := --no-print-directory --jobs $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) SIDE_BY_SIDE=1

# A test run starts hundreds of Pythons: what the first of them compiled is kept for the others, whatever the shell asks for.
unexport PYTHONDONTWRITEBYTECODE

# Only the parts of `make test` and of `make soak` run side by side.
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif
.PHONY: run test test-core test-spark soak soak-core soak-compiled soak-alone soak-spark interop check fmt bench constraints clean

# Options of seglogd: make run ARGS='--listen 127.0.0.1:7000 --kafka 127.0.0.1:7001'
ARGS ?=
run: $(RUN_STAMP)
	$(BIN)/seglogd --set log.dir=./data --log-format console $(ARGS)

# A first look, at a broker that is gone afterwards: make quickstart ARGS=--keep
.PHONY: quickstart
quickstart: $(RUN_STAMP)
	@$(BIN)/seglog quickstart $(ARGS)

# What everyone runs: minutes. Its parts run side by side, because Spark leaves more than one of two cores idle.
test: $(STAMP) $(SPARK_STAMP)
	@echo "check, test-core and test-spark run side by side; each prints its output when it is done"
	@$(MAKE) $(AT_ONCE) check test-core test-spark

# The other half of the tests, and every property again with many more examples: on the compiled packages, as the wheels of
# a release have them.
soak: $(STAMP) $(SPARK_STAMP)
	@echo "soak-core and soak-spark run side by side; each prints its output when it is done"
	@$(MAKE) $(AT_ONCE) soak-core soak-spark
	@$(MAKE) --no-print-directory soak-compiled soak-alone

# Halves of the files for two cores, and whoever is done first takes half of what the other has left.
test-core: $(STAMP)
	@! $(BIN)/python -c 'import pyspark' 2>/dev/null || \
	  { echo "$(VENV) has pyspark, so tests would not show what needs it. Try: make clean"; exit 1; }
	$(call lane,core,$(BIN)/pytest -m 'not spark and not slow and not soak and not interop' -n auto --dist worksteal)

# On pip's Java, whatever the machine has; nothing is skipped for want of it. Other files have no test of this lane, and
# collecting them takes longer than most tests; a test in `make soak` sees to that.
test-spark: $(SPARK_STAMP)
	$(call lane,spark,$(WITH_SPARK) -m 'spark and not slow and not soak and not interop' \
	  $$(grep -rl --include='test_*.py' 'mark[.]spark' tests | sort))

# One test at a time for each core, the longest first.
soak-core: $(STAMP) $(COMPILED_STAMP)
	@echo "SOAK=$(SOAK) SOAK_SEED=$(SOAK_SEED)"
	$(call lane,soak-core,$(ON_COMPILED) $(SOAKING) $(BIN)/pytest \
	  -m 'not spark and not alone and not sources and not interop and (slow or soak or hypothesis)' \
	  -n auto --dist load --maxschedchunk 1 $(DEEP))

# What `make test` runs on the sources, but for the properties, which soak-core has.
soak-compiled: $(STAMP) $(COMPILED_STAMP)
	$(call lane,soak-compiled,$(ON_COMPILED) $(BIN)/pytest \
	  -m 'not spark and not slow and not soak and not hypothesis and not sources and not interop' \
	  -n auto --dist worksteal $(OF_COMPILED))

soak-spark: $(SPARK_STAMP)
	@echo "SOAK=$(SOAK) SOAK_SEED=$(SOAK_SEED)"
	$(call lane,soak-spark,$(SOAKING) $(WITH_SPARK) -m 'spark and not interop and (slow or soak or hypothesis)' -n auto --dist loadfile $(DEEP))

# What measures a daemon has nothing beside it. It runs on the sources, as does what changes them by name.
soak-alone: $(STAMP)
	@echo "SOAK=$(SOAK) SOAK_SEED=$(SOAK_SEED)"
	$(call lane,soak-alone,$(SOAKING) $(BIN)/pytest \
	  -m 'not spark and (alone or sources) and not interop and (slow or soak or hypothesis)' $(DEEP) --capture=no)

# Clients and suites of others against our listeners. They come from their registries, into build/interop, the first time;
# what cannot be had is skipped by name, unless SEGLOG_REQUIRE names it.
interop: $(STAMP) $(SPARK_STAMP)
	$(call lane,interop,$(BIN)/pytest -m 'interop' tests/interop)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/house.py

# A wheel in dist/, for this Python and this machine, whose hottest modules are compiled; and the tests with it.
.PHONY: compiled
compiled: $(STAMP) $(COMPILED_STAMP)
	@mkdir -p dist && rm -f dist/seglog-*-cp*.whl && cp $(COMPILED)/*.whl dist
	$(ON_COMPILED) $(BIN)/pytest tests/test_compiled_wheel.py
	@$(MAKE) --no-print-directory soak-compiled

# The wheel, and its packages where PYTHONPATH finds them before those of the checkout.
$(COMPILED_STAMP): $(STAMP) pyproject.toml hatch_build.py $(shell find broker protocol clients -name '*.py')
	@echo "building the compiled wheel: about five minutes"
	@rm -rf $(COMPILED)
	@HATCH_BUILD_HOOKS_ENABLE=true $(BIN)/python -m pip wheel --quiet --disable-pip-version-check \
	  --no-deps --no-build-isolation --wheel-dir $(COMPILED) .
	@$(BIN)/python -m zipfile -e $(COMPILED)/*.whl $(COMPILED)/packages
	@rm -r $(COMPILED)/packages/seglog-*.dist-info  # else pip takes seglog for installed, wherever it is to install it
	@touch $@

# The wheels of a release in dist/, as far as the Pythons of this machine go: pure, and compiled for each of 3.11 to 3.14.
.PHONY: wheels
wheels:
	$(PYTHON) scripts/wheels.py

# Side by side with bare loops, several rounds, ratios: about ten minutes on a machine that does nothing else.
bench: $(STAMP)
	$(BIN)/python -m benchmarks

# Every document and the client's reference as pages, in build/docs: open index.html there, no server is needed.
.PHONY: docs
docs: $(STAMP)
	$(BIN)/mkdocs build --strict

fmt: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(RUN_STAMP): EXTRAS := broker,load
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
