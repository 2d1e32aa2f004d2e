# make demo   stories -> tokenizer -> two models -> a page of evidence, in minutes on a CPU
# make test   the tests: offline, on a CPU, minutes
# Both create .venv when it is missing or older than the files that describe it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint types check clean

demo: $(STAMP)
	$(BIN)/python -m scripts.demo $(ARGS)

# Two processes of one thread: the models are so small that a second thread costs more than it brings.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/pyright

check: lint types test

# pip's own settings (index, wheel folders) are honoured: who has a CPU build of the pinned torch gets it.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) *.egg-info
