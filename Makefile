# Two commands on a fresh machine: `make run` and `make test`. Both create .venv when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# An environment of its own for the tests with Spark: those of the other one prove that nothing else needs pyspark.
SPARK_VENV := .venv-spark
SPARK_STAMP := $(SPARK_VENV)/.installed

# $(call lane,NAME,COMMAND): the command, and how long it took, however it ended.
lane = @echo "lane $(1)"; started=$$(date +%s); status=0; $(2) || status=$$?; \
  echo "lane $(1): $$(($$(date +%s) - started)) s"; exit $$status

.NOTPARALLEL:
.PHONY: run test test-core test-spark check fmt bench constraints clean

run: $(STAMP)
	$(BIN)/seglogd --set log.dir=./data --log-format console

test: check test-core test-spark

test-core: $(STAMP)
	@! $(BIN)/python -c 'import pyspark' 2>/dev/null || \
	  { echo "$(VENV) has pyspark, so tests would not show what needs it. Try: make clean"; exit 1; }
	$(call lane,core,$(BIN)/pytest -m 'not spark' -n auto --dist loadfile)

# On pip's Java, whatever the machine has; nothing is skipped for want of it.
test-spark: $(SPARK_STAMP)
	$(call lane,spark,SEGLOG_REQUIRE="$$SEGLOG_REQUIRE pyspark java" $(SPARK_VENV)/bin/pytest -m spark)

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

$(STAMP): EXTRAS := dev
$(SPARK_STAMP): EXTRAS := dev,spark-java
$(STAMP) $(SPARK_STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "seglog needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	PIP_CONSTRAINT=constraints.txt $(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $@

# The pinned environment, without index addresses: made anew from what pip resolves today.
constraints:
	rm -rf build/constraints && $(PYTHON) -m venv build/constraints
	build/constraints/bin/python -m pip install --quiet '.[dev,spark-java]'
	build/constraints/bin/python -m pip freeze --all --exclude seglog --exclude pip > constraints.txt

clean:
	rm -rf $(VENV) $(SPARK_VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
