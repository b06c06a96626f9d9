# Every target sets up what it needs in .venv by itself, on a fresh machine too, and is quick when run again.
# Another interpreter: make PYTHON=python3.12 test    More test processes: make JOBS=8 test

PYTHON ?= python3
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
PYTHON_CHECK := import sys; sys.version_info < (3, 11) and sys.exit( \
	"secateur needs Python 3.11 or newer, and " + sys.executable + " is " + sys.version.split()[0] + \
	": name another one (make PYTHON=python3.12 ...), and remove .venv if it was made with the old one")
# Small tensors: more threads than processes only wait for each other.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# The kernels; a machine without a compiler has none and needs none.
KERNELS := src/secateur/_native
SOURCES := $(KERNELS)/compiling.py $(wildcard $(KERNELS)/sources/*)
# A library that checks every access to memory, and the tests that run kernels.
SANITIZED := build/sanitized.so
KERNEL_TESTS := $(filter-out %/test_building.py %/test_compiling.py %/test_loading.py,$(wildcard tests/native/test_*.py))
BENCHMARKS := $(sort $(filter-out benchmarks/_% benchmarks/write_page.py,$(wildcard benchmarks/*.py)))

.DEFAULT_GOAL := help
.PHONY: help demo test sanitize lint types docs dist bench coverage format clean
.DELETE_ON_ERROR:

help:
	@echo 'make demo    train, mask, shrink and mend a small net on real data (under a minute after set-up)'
	@echo 'make test    style, types, tests and doctests'
	@echo 'make sanitize  tests of the kernels with every access to memory checked (gcc)'
	@echo 'make docs    the documentation, into build/docs'
	@echo 'make dist    sdist and wheel, into dist, looked at and installed with and without a compiler'
	@echo 'make bench   the figures of docs/benchmarks.md, on this machine'
	@echo 'make coverage  docs/coverage.md: 471 models of other libraries, about an hour'
	@echo 'make lint, make types, make format, make clean'

# One stamp for each extra of pyproject.toml. A .venv made by hand has no stamp, so pip looks at it once and finds what
# is there. One call, always with the constraints: they decide which torch every other package is resolved against.
$(VENV)/.stamp-%: pyproject.toml constraints.txt $(BIN)/python
	@$(BIN)/python -c '$(PYTHON_CHECK)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@touch $@ $(VENV)/.kernels

$(BIN)/python:
	@$(PYTHON) -c '$(PYTHON_CHECK)'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# An install compiles them; this is for sources that changed since.
$(VENV)/.kernels: $(SOURCES) | $(BIN)/python
	@$(BIN)/python $(KERNELS)/compiling.py || true
	@touch $@

demo: $(VENV)/.stamp-demo $(VENV)/.kernels
	$(BIN)/secateur demo

lint: $(VENV)/.stamp-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.stamp-test
	$(BIN)/mypy

test: lint types $(VENV)/.kernels $(VENV)/.sanitized
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS)

sanitize: $(VENV)/.stamp-test
	@runtimes=$$($(BIN)/python $(KERNELS)/compiling.py --sanitize $(SANITIZED)); status=$$?; \
	if [ $$status = 3 ]; then echo 'the tests of the kernels were not run with sanitizers: see above'; exit 0; fi; \
	[ $$status = 0 ] || exit $$status; \
	LD_PRELOAD="$$runtimes" ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
	SECATEUR_NATIVE=$(SANITIZED) $(ONE_THREAD) $(BIN)/python -m pytest -q -n $(JOBS) $(KERNEL_TESTS)

# Half a minute, so only after a change.
$(VENV)/.sanitized: $(SOURCES) $(wildcard $(KERNELS)/*.py tests/native/*.py) | $(VENV)/.stamp-test
	@$(MAKE) --no-print-directory sanitize
	@touch $@

# -E: all pages anew, as a warning is only given for a page that is read.
docs: $(VENV)/.stamp-docs
	$(BIN)/python -m sphinx -W --keep-going -E -q -b html docs build/docs
	@echo 'the documentation is in build/docs/index.html'

# The wheel is made from the sdist. Tests install both where only their requirements are, without the network.
dist: $(VENV)/.stamp-test
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist
	$(ONE_THREAD) $(BIN)/python -m pytest -q -m release tests/release

bench: $(VENV)/.stamp-bench $(VENV)/.kernels
	@set -e; for script in $(BENCHMARKS); do echo "== $$script"; $(ONE_THREAD) $(BIN)/python "$$script"; done

coverage: $(VENV)/.stamp-test
	@rm -f build/coverage.jsonl
	$(ONE_THREAD) $(BIN)/python -W ignore -m tests.zoo --write docs/coverage.md

format: $(VENV)/.stamp-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist $(KERNELS)/kernels.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
