# Targets for developers; users need none of them.  All tools live in .venv.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.dev

.PHONY: check test slow campaign agents bench format

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict
	$(BIN)/pytest

test: $(READY)
	$(BIN)/pytest

slow: $(READY)
	$(BIN)/pytest -n 0 --slow

KILLS ?= 1000

campaign: $(READY)
	$(BIN)/python -m tests.faults.campaign --kills $(KILLS)

agents: $(READY)
	$(BIN)/python -m tests.agents.install
	$(BIN)/pytest -n 0 --agents -m agents tests/agents

bench: $(READY)
	$(BIN)/python -m tests.bench.run

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q -e '.[dev]'
	touch $@
