# make book | serve | test | test-all | notebooks | kernels | gpu | bench | probe | clean      (README.md says what each is for)

PYTHON ?= python3
PORT   ?= 8000
BIN    := .venv/bin
STAMP  := .venv/.installed
HTML   := _build/html

# What a notebook prints must not depend on the machine's cores, its GPU or the order of a set.
export PYTHONHASHSEED := 0
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
export PYDEVD_DISABLE_FILE_VALIDATION := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: book serve test test-all notebooks kernels gpu bench probe clean environment
.DEFAULT_GOAL := book

# The stamp holds a checksum, not a date: a checkout that touches files installs nothing again.
environment:
	@want=$$(cat requirements.txt requirements-peers.txt pyproject.toml | cksum); \
	if [ -x $(BIN)/python ] && [ "$$(cat $(STAMP) 2>/dev/null)" = "$$want" ]; then exit 0; fi; \
	set -e; \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or later is needed, and $(PYTHON) is not one: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }; \
	echo "Setting up .venv (some minutes the first time)"; \
	$(PYTHON) -m venv .venv; \
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' requirements.txt)"; \
	$(BIN)/python -m pip install --quiet -r requirements.txt; \
	$(BIN)/python -m pip install --quiet --no-deps -r requirements-peers.txt; \
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .; \
	echo "$$want" > $(STAMP)

# From nothing whenever an input changed, and not at all otherwise: an incremental build would keep pages of chapters
# that are gone, keep old styles, and not repeat the warnings of pages that it has already read.
book: environment
	@inputs=$$(find book chapters _config.yml _toc.yml $(STAMP) -type f ! -path '*/__pycache__/*' ! -path '*/.ipynb_checkpoints/*' \
	  -exec cksum {} + | sort | cksum); \
	if [ "$$(cat _build/.inputs 2>/dev/null)" != "$$inputs" ]; then \
	  rm -rf _build; \
	  $(BIN)/jupyter-book build . -W -n --keep-going && $(BIN)/python book/tools/prune.py $(HTML) || { \
	    rm -rf _build; echo "The book was not built."; exit 1; }; \
	  echo "$$inputs" > _build/.inputs; \
	fi
	@echo "The book: $(HTML)/index.html"

serve: book
	@echo "http://localhost:$(PORT)/ (Ctrl-C stops it)"
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory $(HTML) $(PORT)

test: environment
	@$(BIN)/python .ci/prove.py

test-all: environment
	@$(BIN)/python .ci/prove.py --all

notebooks: environment
	@$(BIN)/python book/tools/execute.py chapters/*.ipynb

# Interprets on the CPU, where there is a GPU too, and compiles in a process of its own, which does not interpret.
kernels: environment
	@TRITON_INTERPRET=1 CUDA_VISIBLE_DEVICES= $(BIN)/python -m tests.kernels.matrix

# With the Python that is there: a bare GPU machine has a torch and a triton of its own, and no .venv.
gpu:
	@set -e; for part in $(or $(PART),correct time); do \
	  $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m positionlib.bench.gpu $$part; \
	done

# The peers stand in environments of their own, which read the book's packages and change none of them. Two, since one peer
# is gone from the newer release. First the weight maps are compared with the peers, then everything is timed.
bench: environment
	@set -e; for name in bench bench-4; do \
	  want=$$(cat requirements-$$name.txt $(STAMP) | cksum); \
	  if [ "$$(cat .venv-$$name/.installed 2>/dev/null)" != "$$want" ]; then \
	    echo "Setting up .venv-$$name"; \
	    rm -rf .venv-$$name; \
	    $(BIN)/python -m venv .venv-$$name; \
	    purelib='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	    $(BIN)/python -c "$$purelib" > "$$(.venv-$$name/bin/python -c "$$purelib")/book.pth"; \
	    .venv-$$name/bin/python -m pip install --quiet -r requirements-$$name.txt; \
	    echo "$$want" > .venv-$$name/.installed; \
	  fi; \
	  .venv-$$name/bin/python -m pytest -q tests/bench/test_peers.py tests/bench/test_conversions.py; \
	done
	@$(BIN)/python -m positionlib.bench.cpu

# Random models of transformers, whole and with injected faults: what the checker's probe finds.
probe: environment
	@test -x .venv-bench/bin/python || { echo ".venv-bench is not there: run make bench"; exit 1; }
	@.venv-bench/bin/python -m tests.check.peers

clean:
	rm -rf _build .cache .hypothesis build *.egg-info .venv .venv-bench .venv-bench-4
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
