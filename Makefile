# Two commands on a fresh machine: `make run` and `make test`. Both create .venv when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SPARK := $(VENV)/.spark-installed

.PHONY: run test test-spark check fmt bench constraints clean

run: $(STAMP)
	$(BIN)/seglogd --set log.dir=./data --log-format console

test: check
	$(BIN)/pytest -m 'not spark' -n auto --dist loadfile

# A lane of its own, which says how long it took: half a gigabyte comes from pip, and a JVM has to start, on pip's Java
# and not on the machine's.
test-spark: $(SPARK)
	JAVA_HOME="$$($(BIN)/python -c 'from seglog_spark.java import java_from_pip; print(java_from_pip())')" \
	  $(BIN)/pytest -m spark

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

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "seglog needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP)

$(SPARK): $(STAMP)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,spark-java]'
	@touch $(SPARK)

# The pinned environment, without index addresses: made anew from what pip resolves today.
constraints:
	rm -rf build/constraints && $(PYTHON) -m venv build/constraints
	build/constraints/bin/python -m pip install --quiet '.[dev,spark-java]' hatchling
	build/constraints/bin/python -m pip freeze --all --exclude seglog --exclude pip > constraints.txt

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
