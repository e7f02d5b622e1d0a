# `make demo` and `make test` do all their own set-up into .venv; a second call finds it done.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_OUT ?= runs/demo
# Two processes more than cores, on two: they compute while others wait for FLARE.
WORKERS ?= 4
# Every process that tests start would compile the package anew, and every worker of pytest all test files.
unexport PYTHONDONTWRITEBYTECODE
# The products of NumPy are small: a second thread of OpenBLAS only waits, busily.
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: help demo demo-imaging mlflow test test-fast test-long mutations coverage lint docs bench jobs lock sbom oldest newest versions clean

help:
	@echo "make demo       four real heart hospitals: FedAvg and FedISM+ with real FLARE processes, then: should one of them join?"
	@echo "make demo-imaging  FedAvg and FedISM+ on simulated head CTs of eight hospitals, in the same way"
	@echo "make test       every test, those that start FLARE included"
	@echo "make test-long  laws, kills, absences and faults over all methods, seeds and ways; hours"
	@echo "make mutations  thirty planted defects, and whether the tests find each"
	@echo "make versions   the package under FLARE 2.7, 2.8, 2.9 and the newest candidate: imports, simulator, stock controllers"
	@echo "make mlflow     a run on a real MLflow server, installed apart in build/mlflow"
	@echo "make test-fast  unit, golden and law tests, the slow ones left out"
	@echo "make coverage   the lines that unit, golden, law and attack tests run"
	@echo "make lint       ruff (rules, format) and mypy"
	@echo "make docs       the documentation as a site in build/site; a warning is an error"
	@echo "make bench      the benchmarks, printed as ratios"
	@echo "make jobs       regenerate app_configs/ from jobs/"
	@echo "make lock       requirements.lock.txt: each dependency's version and hashes, for every supported Python"
	@echo "make sbom       build/dist/: the wheel, the same bytes for the same commit, and its bill of materials"
	@echo "make oldest     the package alone in build/oldest with the oldest libraries that setup.cfg allows, and a small run (PYTHON=python3.10: later ones have no wheels of them); newest likewise"

$(STAMP): setup.cfg pyproject.toml constraints.txt lab/pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt torch
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e ".[demo,test]" -e lab
	@touch $@

demo: $(STAMP)
	@$(BIN)/python jobs/demo.py $(DEMO_OUT)

demo-imaging: $(STAMP)
	@$(BIN)/fairflare compare fedavg fedism-plus --task ich-phantom:small --env sim --out $(DEMO_OUT) --force

test: $(STAMP)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

test-long: $(STAMP)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m long --long -o timeout=7200

mutations: $(STAMP)
	@$(BIN)/python tests/mutations.py

versions: $(STAMP)
	@$(BIN)/python tests/versions.py

mlflow: $(STAMP)
	@test -x build/mlflow/bin/mlflow || $(PYTHON) -m venv build/mlflow
	@build/mlflow/bin/python -m pip install -qq --disable-pip-version-check "mlflow>=3,<4"
	@FAIRFLARE_MLFLOW=$(CURDIR)/build/mlflow/bin/mlflow $(BIN)/python -m pytest tests/unit/test_mlflow_server.py

test-fast: $(STAMP)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow" tests/unit tests/golden tests/laws lab/tests

coverage: $(STAMP)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --cov --cov-report=term-missing:skip-covered \
		tests/unit tests/golden tests/laws tests/attacks lab/tests

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

docs: $(STAMP)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(STAMP)
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

jobs: $(STAMP)
	@$(BIN)/python jobs/export_configs.py

lock: $(STAMP)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check uv
	@$(BIN)/uv pip compile setup.cfg -q --extra images -c constraints.txt --universal --python-version 3.10 --generate-hashes \
		--no-annotate --no-header --upgrade -o requirements.lock.txt

sbom: $(STAMP)
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m pip wheel -q --no-deps -w build/dist .
	@$(BIN)/python jobs/sbom.py build/dist/*.whl >build/dist/sbom.json
	@cd build/dist && sha256sum *.whl sbom.json

oldest newest: $(STAMP)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check uv
	@$(BIN)/uv venv -q --clear --python $(PYTHON) build/$@
	@$(BIN)/uv pip install -q --python build/$@ --resolution $(if $(filter oldest,$@),lowest-direct,highest) .
	@build/$@/bin/fairflare list >/dev/null
	@build/$@/bin/fairflare run fedavg --task support2 --rounds 2 --out build/$@/run --force

clean:
	rm -rf build .cache .pytest_cache .ruff_cache .coverage .coverage.* .mypy_cache
