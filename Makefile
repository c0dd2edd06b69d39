# make quickstart and make test are all that a new clone needs; make help lists the rest.

SHELL := bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := runs/quickstart
# For a CPU: keep a step's memory in the process, in pages of 2 MB. docs/training.md says what it gains.
CPU := GLIBC_TUNABLES=glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1099511627776:glibc.malloc.hugetlb=1 \
	JAX_CPU_ENABLE_ASYNC_DISPATCH=false
# Each file of tests in one of a few processes, in their order: each keeps gigabytes of compiled programs.
PYTEST := $(BIN)/python -m pytest --ignore=tests/accelerators --numprocesses=auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder
# Images of containers set it: each of the many processes of the tests would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt
# On a terminal one line shows what pip does; elsewhere pip is quiet.
SHOWN := $(if $(shell test -t 2 && echo terminal),--progress-bar=off | { while IFS= read -r line; do \
	printf '\r\033[K%.75s' "$$line"; done; printf '\r\033[K'; } >&2,--quiet)
# By its path: Python would else take a folder of this name, in which this clone may lie, for the package.
EDITABLE := $(PIP) --config-settings editable_mode=compat --editable

.PHONY: help environment quickstart notebook test accelerators accelerators-environments lint docs check dist clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

environment: $(VENV)/.environment  ## create .venv and install jaxformer into it

$(VENV)/.environment: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "jaxformer needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing jaxformer into $(VENV) (about a minute)"
	@$(EDITABLE) '.[train]' $(SHOWN)
	@touch $@

$(VENV)/.test: $(VENV)/.environment
	@echo "installing what the tests need into $(VENV)"
	@$(EDITABLE) '.[test]' $(SHOWN)
	@touch $@

$(VENV)/.lint: $(VENV)/.environment
	@$(EDITABLE) '.[lint]' $(SHOWN)
	@touch $@

$(VENV)/.docs: $(VENV)/.environment
	@$(EDITABLE) '.[docs]' $(SHOWN)
	@touch $@

# Say what runs as one would type it, and run it.
define run
@echo; echo '$$ $(3)jaxformer $(1)'; $(3)$(2) $(BIN)/jaxformer $(1)
endef

quickstart: environment  ## train, score, translate and draw on the bundled corpus
	$(call run,train --config=configs/quickstart.py --workdir=$(RUN),$(CPU))
	$(call run,evaluate --workdir=$(RUN),$(CPU))
	$(call run,translate --workdir=$(RUN),$(CPU),printf "Insert a new table.\nOpens the dialog.\nYou can change the color of the text.\n" | )
	$(call run,attention --workdir=$(RUN) --animate "Insert a new table.")
	@printf '%s\n' "" "Everything lies in $(RUN):" \
		"  results.json               the test score with its signature" \
		"  hypotheses.*.txt           the translations that were scored" \
		"  curve.png, metrics.jsonl   the learning curve and its numbers" \
		"  attention/attention.html   what the model attends to, for the browser" \
		"It knows sentences of an office program. Translate in the browser, or in the terminal:" \
		"  source $(BIN)/activate" \
		"  jaxformer serve --workdir=$(RUN)" \
		"  echo 'Delete the row.' | jaxformer translate --workdir=$(RUN)" \
		"For your own text: docs/train.md"

notebook: environment  ## open the notebook on the paper in a browser
	@$(PIP) jupyterlab $(SHOWN)
	$(BIN)/jupyter lab docs/notebooks/from_attention_to_a_model.ipynb

# make test leaves out what is marked slow; make check runs it too. Without PyTorch the
# parity tests stay out.
CHOSEN := not slow
check: CHOSEN :=

test: $(VENV)/.test  ## install what the tests need, and run all but the slow ones
	@chosen='$(CHOSEN)'; \
	if ! $(BIN)/python -c 'import torch' 2>/dev/null; then \
		chosen="$${chosen:+$$chosen and }not parity"; \
		echo "left out: the parity tests, which need PyTorch: $(BIN)/pip install '.[parity]'"; \
	fi; \
	echo "collecting the tests (half a minute)"; \
	$(PYTEST) -m "$$chosen"

# The two compilers want environments of their own: 1.5 and 3.5 GB. CUDA's libraries that
# only a device needs stay out.
ACCELERATORS := $(VENV)-tpu/.tests $(VENV)-cuda12/.tests
COMPILER_tpu := 'jax[tpu]'
COMPILER_cuda12 := jax-cuda12-plugin jax-cuda12-pjrt nvidia-cuda-nvcc-cu12 nvidia-cudnn-cu12 nvidia-cublas-cu12
MARKED := not slow

$(VENV)-%/.tests: pyproject.toml constraints.txt
	@test -x $(VENV)-$*/bin/python || $(PYTHON) -m venv $(VENV)-$*
	@echo "installing the compiler of $* into $(VENV)-$*"
	@$(VENV)-$*/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--config-settings editable_mode=compat --editable '.[train]' $(COMPILER_$*) beartype pytest pytest-timeout
	@touch $@

accelerators-environments: $(ACCELERATORS)

compile-%: $(VENV)-%/.tests
	$(VENV)-$*/bin/python -m pytest tests/accelerators -m "$(MARKED)"

accelerators: $(ACCELERATORS)  ## compile for TPUs and GPUs that are not there (make accelerators MARKED= for all)
	$(MAKE) --jobs=2 --output-sync compile-cuda12 compile-tpu

lint: $(VENV)/.lint $(VENV)/.test  ## ruff, pyright, shellcheck, and the size of each room against its limit
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/shellcheck --external-sources scripts/*.sh scripts/*.sbatch .ci/run
	$(BIN)/python scripts/measure_code.py --lower

# The variable silences an announcement of the theme's.
docs: $(VENV)/.docs  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "open site/index.html"

check: lint test  ## the linters and every test: all that has to pass before a change lands

# The wheel is built from the sdist, which so is known to hold all that it takes.
dist: $(VENV)/.environment  ## build the wheel and the sdist into dist/
	@$(PIP) build $(SHOWN)
	$(BIN)/python -m build --outdir dist .

clean:  ## remove the environment and what tools left behind; runs/ stays
	rm -rf $(VENV) $(VENV)-tpu $(VENV)-cuda12 build dist site *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
