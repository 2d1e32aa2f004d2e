# make demo   stories -> tokenizer -> two models -> a page of evidence, in minutes on a CPU
# make test   the tests: offline, on a CPU, minutes
# make slow   tests that not every edit needs: compilers, several processes, memory; minutes
# make site   the guides as a site, with search and a reference, in site/
# make portable   tests of numbers once more, with the code of other processors, minutes
# make interop    exports in transformers, lm-eval and TransformerLens, which have an environment of
#                 their own, .venv-interop; minutes
# All create .venv when it is missing or older than the files that describe it; the demo installs no
# tools of developers. pip's own settings are honoured: PIP_EXTRA_INDEX_URL=... takes another torch.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
USERS := $(VENV)/.installed
STAMP := $(VENV)/.installed-dev

.PHONY: demo test slow portable interop lint types check site record clean

demo: $(USERS)
	$(BIN)/python -m scripts.demo $(ARGS)

# Bytecode is kept, as on a user's machine, whatever this one is told: it saves a tenth of the time.
unexport PYTHONDONTWRITEBYTECODE

# Two processes of one thread: the models are so small that a second thread costs more than it brings.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

slow: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "slow and not gpu" $(ARGS)

# Rounding differs with the instructions, the library's code path and the number of threads.
PROCESSORS := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=COMPATIBLE \
    ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=2 OMP_NUM_THREADS=4
NUMBERS := tests/golden tests/eval/inversion tests/eval/captured tests/eval/sites tests/eval/measures \
    tests/eval/lenses tests/arch/kernels/test_kernels.py tests/arch/mixers/test_mixers_equal.py

portable: $(STAMP)
	for setting in $(PROCESSORS); do \
	    echo "== $$setting" && env OMP_NUM_THREADS=1 GOMP_SPINCOUNT=10000 $$setting \
	        $(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS) $(NUMBERS) || exit 1; \
	done

# Their packages, whose pins touch none of ours. Without remnant: exports must stand alone.
INTEROP := .venv-interop
PINS := tests/interop/constraints.txt

$(INTEROP)/.installed: $(PINS)
	$(PYTHON) -m venv $(INTEROP)
	$(INTEROP)/bin/python -m pip install --quiet --constraint $(PINS) torch 'lm-eval[hf]' transformer-lens mlx-lm \
	    'mlx[cpu]; sys_platform == "linux"'
	touch $@

interop: $(STAMP)
	@if $(MAKE) --silent $(INTEROP)/.installed; then \
	    INTEROP_PYTHON=$(INTEROP)/bin/python $(BIN)/python -m pytest -m interop -s $(ARGS) tests/interop; \
	else echo "make interop: skipped, as the packages of $(PINS) cannot be installed here"; fi

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/pyright

check: lint types test

# The guides as a site, with search and the reference of functions, in site/.
site: $(STAMP)-site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --config-file scripts/site/mkdocs.yml
	@echo "site/index.html"

# An environment of another Python, as of a first try, is made anew; one without pip, as of uv or of a
# venv that failed, gets it; or a line says what to do.
FITS := -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
HAS_PIP := $(BIN)/python -m pip --version >/dev/null 2>&1

define install
	@$(BIN)/python $(FITS) || $(PYTHON) $(FITS) || { echo "error: $(PYTHON) is not there, or is no Python 3.10 \
	to 3.13; name one: make PYTHON=python3.12" >&2; exit 2; }
	@$(BIN)/python $(FITS) || $(PYTHON) -m venv --clear $(VENV) || true
	@$(HAS_PIP) || $(BIN)/python -m ensurepip >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV) || true
	@$(HAS_PIP) || { echo "error: $(VENV) has no pip; install what $(PYTHON) -m venv needs (Debian: apt \
	install python3-venv), name another Python (make PYTHON=python3.12), or: uv venv --seed" >&2; exit 2; }
	@echo "installing into $(VENV); on Linux pip takes torch for CUDA, gigabytes, unless PIP_EXTRA_INDEX_URL"
	@echo "names the index of its CPU builds, 200 MB: https://download.pytorch.org/whl/cpu"
	$(BIN)/python -m pip install --constraint constraints.txt --editable
endef

$(USERS): pyproject.toml constraints.txt
	$(install) ".[explore]"
	touch $@

$(STAMP): pyproject.toml constraints.txt
	$(install) ".[dev,explore]"
	touch $(USERS) $@

$(STAMP)-site: $(STAMP)
	$(BIN)/python -m pip install --constraint constraints.txt --editable ".[site]"
	touch $@

# A row of docs/records.md: TRACK is 5min, 30min or any; hours on an idle machine.
TRACK ?= 5min
RECIPE ?= record
record: $(USERS)
	$(BIN)/python -m scripts.record $(TRACK) $(RECIPE) $(ARGS)

clean:
	rm -rf $(VENV) $(INTEROP) *.egg-info
