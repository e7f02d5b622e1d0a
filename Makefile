# `make demo` and `make test` do all their own set-up into .venv; a second call finds it done.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_OUT ?= runs/demo
# A third process computes while another waits for FLARE's.
WORKERS ?= 3
# The rate was chosen on validation patients: docs/results/drift/chosen.csv
NO_DRIFT := scaffold:weighting=examples,train.optimizer=sgd,train.momentum=0,train.lr=0.15

.PHONY: help demo demo-imaging test test-fast test-long mutations coverage lint bench jobs clean

help:
	@echo "make demo       four real heart hospitals, with real FLARE processes: FedAvg, SCAFFOLD and Ditto against training alone"
	@echo "make demo-imaging  FedAvg and FedISM+ on simulated head CTs of eight hospitals, in the same way"
	@echo "make test       every test, those that start FLARE included"
	@echo "make test-long  laws, kills, absences and faults over all methods, seeds and ways; hours"
	@echo "make mutations  ten planted defects, and whether the tests find each"
	@echo "make test-fast  unit, golden and law tests, the slow ones left out"
	@echo "make coverage   the lines that unit, golden, law and attack tests run"
	@echo "make lint       ruff (rules, format) and mypy"
	@echo "make bench      the benchmarks, printed as ratios"
	@echo "make jobs       regenerate app_configs/ from jobs/"

$(STAMP): setup.cfg pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt torch
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e ".[demo,test]"
	@touch $@

demo: $(STAMP)
	@$(BIN)/fairflare compare fedavg $(NO_DRIFT) ditto --task heart:full --rounds 20 --solo --env sim --out $(DEMO_OUT) --force
	@echo "FedAvg and Ditto start a new Adam in each round, as the preset says; FedAvg's loss in Switzerland is mostly client drift of that"
	@echo "local training. SCAFFOLD corrects for drift. What was measured: docs/results/drift/drift.md"

demo-imaging: $(STAMP)
	@$(BIN)/fairflare compare fedavg fedism-plus --task ich-phantom:small --env sim --out $(DEMO_OUT) --force

test: $(STAMP)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

test-long: $(STAMP)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m long --long -o timeout=7200

mutations: $(STAMP)
	@$(BIN)/python tests/mutations.py

test-fast: $(STAMP)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow" tests/unit tests/golden tests/laws

coverage: $(STAMP)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --cov --cov-report=term-missing:skip-covered \
		tests/unit tests/golden tests/laws tests/attacks

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(STAMP)
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

jobs: $(STAMP)
	@$(BIN)/python jobs/export_configs.py

clean:
	rm -rf build .pytest_cache .ruff_cache .coverage .coverage.* .mypy_cache
