# Everything runs in .venv, which the first call makes. Needs Python >= 3.10 with venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: test demo lint venv clean

test: lint
	$(BIN)/python -m pytest -q

demo: $(STAMP)
	$(BIN)/karma demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/typecheck.py

venv: $(STAMP)

$(STAMP): setup.py pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[test,lint]'
	@touch $@

clean:
	rm -rf $(VENV) build dist karma_fx.egg-info .mypy_cache .pytest_cache .ruff_cache
