PYTHON       ?= python3
VENV         ?= .venv
BENCH_VENV   ?= .venv-bench
LOWEST_VENV  ?= .venv-lowest
FLOWER_VENV  ?= .venv-lowest-federated
DEMO_EXTRAS  ?= figures,train,web
TEST_EXTRAS  ?= dev,docs,federated,figures,train,web
TEST_TOOLS   ?= pytest pytest-xdist hypothesis mpmath httpx
PYTEST_FLAGS ?= -n auto

BIN   := $(VENV)/bin
comma := ,
stamp  = $(VENV)/.installed-$(subst $(comma),-,$(1))

DEMO_STAMP  := $(call stamp,$(DEMO_EXTRAS))
TEST_STAMP  := $(call stamp,$(TEST_EXTRAS))
BENCH_STAMP := $(BENCH_VENV)/.installed
LOWEST_STAMP := $(LOWEST_VENV)/.installed
FLOWER_STAMP := $(FLOWER_VENV)/.installed
KERNEL      := hatch_build.py verax/randomness/_kernel.c

# install(environment, constraints, what). The build backend is installed first, under the same constraints,
# so that nothing is left unpinned. torch goes first and on its own: its plain build is enough.
define install
	$(1)/bin/pip install --quiet -c $(2) hatchling editables packaging setuptools
	$(if $(findstring train,$(3))$(findstring federated,$(3)),$(1)/bin/pip install --quiet -c $(2) torch==2.13.0)
	$(1)/bin/pip install --quiet -c $(2) --no-build-isolation $(3)
endef

define new_venv
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("verax needs Python 3.11 or newer, but $(PYTHON) is %d.%d; name another one with: make PYTHON=python3.12" % sys.version_info[:2])'
	$(PYTHON) -m venv $(1)
	@touch $(1)/.created
endef

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-newest test-lowest lint docs format bench studies clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

demo: $(DEMO_STAMP)  ## install if needed, then price, plan, train, state and audit: verax demo
	$(BIN)/verax demo

test: lint  ## install if needed, then lint, types, tests and doctests
	$(BIN)/pytest $(PYTEST_FLAGS)

test-all: lint  ## the same, with the slow tests
	$(BIN)/pytest -m "not index" $(PYTEST_FLAGS)

test-newest: $(TEST_STAMP)  ## install the wheel with the newest of everything and run the commands; skipped without package index
	$(BIN)/pytest -n 0 -m index tests/test_packaging_newest.py

test-lowest: $(LOWEST_STAMP) $(FLOWER_STAMP)  ## the tests with the lowest versions that pyproject.toml allows
	$(LOWEST_VENV)/bin/pytest $(PYTEST_FLAGS)
	$(FLOWER_VENV)/bin/pytest $(PYTEST_FLAGS) tests/federated tests/cli/test_federate.py

lint: $(TEST_STAMP)  ## ruff check, ruff format --check, mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(TEST_STAMP)  ## build the documentation into build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(TEST_STAMP)  ## sort imports, fix what ruff can fix, format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: $(BENCH_STAMP)  ## compare with other accountants, in an environment of its own
	$(BENCH_VENV)/bin/python benchmarks/accounting.py


studies: $(DEMO_STAMP)  ## train on real data for docs/studies.md; VERAX_DATA names the folder with them; hours
	$(BIN)/python studies/proactive.py
	$(BIN)/python studies/proactive.py --problems non-convex --seeds 1
	$(BIN)/python studies/mnist_clippings.py
	$(BIN)/python studies/equal_epsilon.py
	$(BIN)/python studies/participation.py
	$(BIN)/python studies/asynchronous.py
	$(BIN)/python studies/heart_hospitals.py

clean:  ## remove the environments, caches and build products
	rm -rf $(VENV) $(BENCH_VENV) $(LOWEST_VENV) $(FLOWER_VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find verax tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(sort $(VENV)/.created $(BENCH_VENV)/.created $(LOWEST_VENV)/.created $(FLOWER_VENV)/.created): %/.created:
	$(call new_venv,$*)

$(sort $(DEMO_STAMP) $(TEST_STAMP)): $(VENV)/.installed-%: pyproject.toml constraints.txt $(KERNEL) | $(VENV)/.created
	$(call install,$(VENV),constraints.txt,-e ".[$(subst -,$(comma),$*)]")
	@touch $@

$(BENCH_STAMP): pyproject.toml constraints.txt $(KERNEL) benchmarks/requirements.txt | $(BENCH_VENV)/.created
	$(call install,$(BENCH_VENV),constraints.txt,-r benchmarks/requirements.txt -e ".[train]")
	@touch $@

$(LOWEST_STAMP): pyproject.toml constraints-lowest.txt $(KERNEL) | $(LOWEST_VENV)/.created
	$(call install,$(LOWEST_VENV),constraints-lowest.txt,-e ".[figures$(comma)train$(comma)web]" $(TEST_TOOLS))
	@touch $@

$(FLOWER_STAMP): pyproject.toml constraints-lowest-federated.txt $(KERNEL) | $(FLOWER_VENV)/.created
	$(call install,$(FLOWER_VENV),constraints-lowest-federated.txt,-e ".[federated]" $(TEST_TOOLS))
	@touch $@
