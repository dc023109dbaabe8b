# Targets for developers; users need none of them.  All tools live in .venv.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.dev

.PHONY: check test slow campaign agents bench format wheel

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict
	$(BIN)/pytest --check

test: $(READY)
	$(BIN)/pytest

SEED := $(or $(SEED),$(shell od -An -N4 -tu4 /dev/urandom | tr -d ' '))

slow: $(READY)
	@echo "This takes about 50 minutes on 2 cores.  make slow SEED=$(SEED) repeats its random choices."
	SLOW_SEED=$(SEED) $(BIN)/pytest --slow --hypothesis-seed $(SEED)

KILLS ?= 1000

campaign: $(READY)
	cd tests && ../$(BIN)/python -m faults.campaign --kills $(KILLS)
	cd tests && ../$(BIN)/python -m faults.campaign --mode neighbours --kills 5000 --seconds 36000
	DAMAGED_COUNT=100000 $(BIN)/pytest --slow -k very_much tests/faults

agents: $(READY)
	$(BIN)/python -m tests.agents.install
	$(BIN)/pytest -n 0 --agents -m agents tests/agents

wheel: $(READY)
	rm -rf dist
	$(BIN)/uv build --quiet
	$(BIN)/uvx twine check --strict dist/*
	$(BIN)/uvx check-wheel-contents dist/*.whl
	WHEELS=$(CURDIR)/dist $(BIN)/pytest -n 0 --slow tests/test_installing.py

bench: $(READY)
	cd tests && ../$(BIN)/python -m bench.run

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q -e '.[dev]'
	touch $@
