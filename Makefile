# Everything that a person types. The code is in src/drsrobust, benchmarks and reproduce; this file sets up and calls.
# Settings:  PROFILE=smoke|laptop|paper  PLAN=1 (print the plan alone)  DATA=folder with the real data sets  SETS="ml-20m criteo"  BENCH=injection|peers|encoding|training|quality|campaign|mitigation|coverage|memory_faults|planning|cluster|rows|sharding|gpu  PYTHON=interpreter  LOCK=requirements/gpu.txt

PYTHON  ?= $(shell command -v python3.11 || command -v python3)
LOCK    ?= requirements/cpu.txt
PROFILE ?= laptop
BENCH   ?= injection
DATA    ?=
PLAN    ?=
SETS    ?=
VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/installed-$(basename $(notdir $(LOCK)))
BROWSER := $(VENV)/browser-installed
DOCS    := $(VENV)/docs-installed
ARTICLE := $(VENV)/article-installed
CHROMIUM ?= $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '/(tests|testing|mypyc?|debugpy|fontTools|networkx|physics|_inductor/\w+)/'
HASHES  := $(wildcard $(LOCK:.txt=.hashes.txt))
CUDA    := --no-require-hashes -c requirements/cuda.hashes.txt
SHIM    := requirements/fbgemm-gpu-cpu-shim/pyproject.toml

# One cache for all runs from this checkout; kernels come from this environment only. One thread a process: on a busy machine
# several are far slower, and results do not depend on the number of cores.
export DRSROBUST_CACHE ?= $(CURDIR)/build/cache
export JUPYTER_PREFER_ENV_PATH := 1
export OMP_NUM_THREADS ?= 1
export PYTHONNOUSERSITE := 1
ifneq ($(DATA),)
# abspath and patsubst split at spaces, so spaces are replaced for a moment.
SPACE := $(subst ,, )
HOME_ := $(subst $(SPACE),␣,$(HOME))
DATA_ := $(patsubst ~,$(HOME_),$(patsubst ~/%,$(HOME_)/%,$(subst $(SPACE),␣,$(DATA))))
export DRSROBUST_DATA := $(subst ␣,$(SPACE),$(abspath $(DATA_)))
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup lab data reproduce publish bundle compare test browser-test docs article bench same lint format lock clean distclean

help:  ## show this help
	@echo "drsrobust: what bit errors do to deep recommenders"; echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo; sed -n 's/^# Settings: */  settings: /p' $(MAKEFILE_LIST)

# First all third-party packages but PyTorch, with hashes, then what is missing: PyTorch (whose CPU build differs from index to
# index), the project and the shim. The public index gives PyTorch's CUDA build, which needs packages that the CPU build does not:
# pip takes them with it, by the versions and hashes in $(CUDA), so this call has no --no-deps. pip would compile on one core what
# compileall compiles on all, while PyTorch is unpacked, and without what nothing here imports; files that cannot be compiled are
# templates. Installs again only when the lock, project file or shim is newer than the stamp.
# The stamp has the lock's name, since CPU and GPU builds cannot share an environment: another lock rebuilds it.
setup: $(STAMP)  ## make .venv and install the pinned versions (all other targets do this too)

$(STAMP): $(LOCK) pyproject.toml $(SHIM)
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v[:2] == (3, 11) else f"drsrobust is pinned for Python 3.11; $(PYTHON) is {v[0]}.{v[1]}. Try: make setup PYTHON=/path/to/python3.11")'
	@test -e $@ || ! ls $(VENV)/installed-* >/dev/null 2>&1 || rm -rf $(VENV)
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "installing $(LOCK) (some minutes, once)"
	@$(INSTALL) --no-deps --require-hashes -r requirements/pip.hashes.txt
	@$(if $(HASHES),$(INSTALL) --no-deps --require-hashes -r $(HASHES))
	@$(COMPILE) $(VENV)/lib & $(INSTALL) $(if $(HASHES),$(CUDA)) -r $(LOCK) && wait
	@$(COMPILE) $(VENV)/lib/python*/site-packages/*torch* src reproduce benchmarks || true
	@$(BIN)/python -m pip check --disable-pip-version-check
	@$(BIN)/python requirements/torch_build.py
	@touch $@

lab: $(STAMP)  ## open the notebooks in JupyterLab, on their index
	$(BIN)/python -m jupyter lab --notebook-dir=notebooks notebooks/index.ipynb

data: $(STAMP)  ## download MovieLens into DATA (default: build/data) and print where to get other data sets (SETS="ml-20m criteo")
	@$(BIN)/python -m drsrobust_extras.data.download $(SETS)

# make's pid, so that the run ends with make: see `end_with_make` in reproduce/runner.py.
reproduce: $(STAMP)  ## run all notebooks: figures and report in build/PROFILE (PROFILE=smoke|laptop|paper, DATA=folder, PLAN=1: how long it will take, PORTABLE=1: the same numbers on other processors, CHECKPOINTS=bundle: without training)
	@DRSROBUST_MAKE=$$PPID exec $(BIN)/python -m reproduce --profile "$(PROFILE)" $(if $(PLAN),--plan) $(if $(PORTABLE),--portable) $(if $(CHECKPOINTS),--checkpoints "$(CHECKPOINTS)")

publish: $(STAMP)  ## copy the finished PROFILE run on real data into figures/ (CACHED=1: also one that did not begin with an empty cache)
	@$(BIN)/python -m reproduce --publish --profile "$(PROFILE)" $(if $(CACHED),--cached)

bundle: $(STAMP)  ## one zip file of the finished PROFILE run: trained models, figures, record, SHA-256 sums
	@$(BIN)/python -m reproduce --bundle --profile "$(PROFILE)"

compare: $(STAMP)  ## compare the finished PROFILE run with the published figures
	@$(BIN)/python -m reproduce --compare --profile "$(PROFILE)"

# By files, in the order of tests/conftest.py: the slowest first.
PARALLEL := --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
test: $(STAMP)  ## run the tests, LONG=1: the long ones too (with real data where DATA or DRSROBUST_DATA names it)
	$(BIN)/python -m pytest $(PARALLEL) $(if $(LONG),-m "long or not long")

# On the report of the smoke run, or of PROFILE; it is made if missing.
browser-test same: PROFILE := smoke
browser-test: $(STAMP) $(BROWSER)  ## check the report and JupyterLab in a real Chromium: links, accessibility, phone, print
	@test -x "$(CHROMIUM)" || { echo "browser-test: no Chromium on PATH; on Debian and Ubuntu: apt-get install chromium"; exit 1; }
	@test -e "build/$(PROFILE)/run.json" || $(BIN)/python -m reproduce --profile "$(PROFILE)"
	@$(BIN)/python -m reproduce --report --profile "$(PROFILE)"
	DRSROBUST_CHROMIUM="$(CHROMIUM)" DRSROBUST_REPORT="build/$(PROFILE)/report" $(BIN)/python -m pytest -o addopts=-q tests/browser

# Executed notebooks of the last run of PROFILE, or the notebooks without outputs.
docs: $(STAMP) $(DOCS)  ## build the documentation into build/docs, and check its links
	@$(BIN)/python -m reproduce.docs_site --profile "$(PROFILE)"

article: $(STAMP) $(ARTICLE)  ## write paper/article.md from figures/, and build/article/article.pdf of it (no LaTeX)
	@$(BIN)/python -m reproduce.article

$(BROWSER) $(DOCS) $(ARTICLE): $(VENV)/%-installed: requirements/%.txt | $(STAMP)
	@$(INSTALL) --no-deps --require-hashes -r $(<:.txt=.hashes.txt)
	@touch $@

bench: $(STAMP)  ## measure time and memory: table in build/bench/BENCH.csv (BENCH=injection|peers|encoding|training|quality|campaign|mitigation|coverage|memory_faults|planning|cluster|rows|sharding|gpu)
	@$(BIN)/python -m benchmarks $(BENCH)

same: $(STAMP)  ## run PROFILE (default: smoke) at commit BASE and here, and compare all numbers of figures bit for bit
	@test -n "$(BASE)" || { echo "same: name the commit to compare with: make same BASE=main"; exit 2; }
	@$(BIN)/python -m reproduce.same "$(BASE)" --profile "$(PROFILE)"

lint: $(STAMP)  ## check style (ruff), the one-way rule of imports (import-linter) and types (mypy)
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports && $(BIN)/mypy

format: $(STAMP)  ## format the code and strip notebook outputs
	$(BIN)/ruff check --fix . && $(BIN)/ruff format . && $(BIN)/nbstripout --extra-keys "metadata.papermill metadata.widgets" notebooks/*.ipynb

# uv reads UV_TORCH_BACKEND (=cpu: PyTorch's own index) or UV_FIND_LINKS (=folder with PyTorch's CPU wheel) by itself.
lock: $(STAMP)  ## compile requirements/*.in into *.txt (first: export UV_TORCH_BACKEND=cpu, or UV_FIND_LINKS=folder of the CPU wheel)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --upgrade --target build/uv uv==0.13.9
	@PYTHONPATH=build/uv $(BIN)/python -m uv pip compile -q --upgrade --python-version 3.11 --no-header requirements/cpu.in -o build/cpu.txt
	@sed 's/^torch==\([0-9.]*\)+cpu/torch==\1/' build/cpu.txt > build/cpu.lock
	@! grep -n '^nvidia-' build/cpu.lock || { echo "lock: PyTorch's CPU build was not found (read the comment above this target)"; exit 1; }
	@cp build/cpu.lock requirements/cpu.txt
	@grep '^[a-z].*==' build/cpu.lock > build/same.txt  # both machines get the same versions of all other packages
	@env -u UV_TORCH_BACKEND -u UV_FIND_LINKS PYTHONPATH=build/uv $(BIN)/python -m uv pip compile -q --upgrade --python-version 3.11 --no-header --no-annotate requirements/gpu.in -c build/same.txt -o requirements/gpu.txt
	@{ echo "# Packages of PyTorch's CUDA build that are not in cpu.txt: lines of gpu.txt, without FBGEMM. Made by \`make lock\`."; \
	  grep '==' requirements/gpu.txt | grep -vxFf build/same.txt | grep -v '^fbgemm-gpu=='; } > requirements/cuda.txt
	@for name in cpu gpu cuda docs browser article pip; do \
	  grep '^[a-zA-Z].*==' requirements/$$name.txt | grep -v '^torch==' > build/$$name.in; \
	  env -u UV_TORCH_BACKEND -u UV_FIND_LINKS PYTHONPATH=build/uv $(BIN)/python -m uv pip compile -q --no-deps --generate-hashes --python-version 3.11 --no-header --no-annotate build/$$name.in -o requirements/$$name.hashes.txt || exit 1; \
	done
	@echo "wrote requirements/cpu.txt, gpu.txt and cuda.txt, and hashes of these, docs.txt, browser.txt, article.txt and pip.txt"

clean:  ## remove build/ (runs, figures, caches); .venv and build/data stay
	@test ! -d build || find build -mindepth 1 -maxdepth 1 ! -name data -exec rm -rf {} +
	rm -rf .pytest_cache .ruff_cache .hypothesis .import_linter_cache

distclean: clean  ## remove .venv and build/data too
	rm -rf $(VENV) build
