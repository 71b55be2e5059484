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

# $(call lane,NAME,COMMAND): the command, and how long it took, however it ended.
lane = @echo "lane $(1)"; started=$$(date +%s); status=0; $(2) || status=$$?; \
  echo "lane $(1): $$(($$(date +%s) - started)) s"; exit $$status

.NOTPARALLEL:
.PHONY: run test test-core test-spark soak check fmt bench constraints clean

run: $(RUN_STAMP)
	$(BIN)/seglogd --set log.dir=./data --log-format console

test: check test-core test-spark

test-core: $(STAMP)
	@! $(BIN)/python -c 'import pyspark' 2>/dev/null || \
	  { echo "$(VENV) has pyspark, so tests would not show what needs it. Try: make clean"; exit 1; }
	$(call lane,core,$(BIN)/pytest -m 'not spark and not soak' -n auto --dist loadfile)

# On pip's Java, whatever the machine has; nothing is skipped for want of it.
test-spark: $(SPARK_STAMP)
	$(call lane,spark,SEGLOG_REQUIRE="$$SEGLOG_REQUIRE pyspark java" $(SPARK_VENV)/bin/pytest -m spark)

# What is too long for everyone: it prints what it counted, and the seed that makes the same run again.
soak: $(STAMP)
	$(call lane,soak,$(BIN)/pytest -m soak --timeout 3600 --capture=no)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Side by side with bare loops, several rounds, ratios: about ten minutes on a machine that does nothing else.
bench: $(STAMP)
	$(BIN)/python -m benchmarks

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
