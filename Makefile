# The two commands of the README are `make demo` and `make test`; both build .venv from requirements.lock first.
PYTHON ?= python3
BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock

.PHONY: demo test pytest fuzz check docs bench dist lock lock-images clean

demo: .venv/core.stamp  ## train a ViT on handwritten digits, and look at what it has learnt
	$(BIN)/vitrail demo

test: .venv/dev.stamp  ## lint, types and all tests but the slowest, side by side
	@$(MAKE) --no-print-directory --jobs=2 check pytest

# The workers share the cores: threads that wait for work must not spin in the meantime. Compiled files are kept, because
# many tests start processes.
PYTEST := OMP_WAIT_POLICY=passive PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $$(getconf _NPROCESSORS_ONLN) --dist worksteal

pytest: .venv/dev.stamp  ## all tests but those that take longest, which `make fuzz` runs
	$(PYTEST)

# TIMES as many cases as `make test` tries; the same ones each time, unless SEED is another number.
TIMES ?= 20
SEED ?= 0
fuzz: .venv/dev.stamp  ## the fuzzers, with thousands of cases, and the tests that take longest
	VITRAIL_FUZZ=$(TIMES) VITRAIL_FUZZ_SEED=$(SEED) $(PYTEST) -m "fuzz or hypothesis" --hypothesis-seed=$(SEED)

check: .venv/dev.stamp  ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

docs: .venv/dev.stamp  ## the site, in build/site/index.html; needs no network
	$(BIN)/python -m sphinx -W --keep-going --quiet -b html docs build/site

bench: .venv/dev.stamp  ## side-by-side tables against the peers
	$(BIN)/python -m benchmarks.model
	$(BIN)/python -m benchmarks.weights
	$(BIN)/python -m benchmarks.data
	$(BIN)/python -m benchmarks.train
	$(BIN)/python -m benchmarks.predict
	$(BIN)/python -m benchmarks.runtimes
	$(BIN)/python -m benchmarks.serving

dist: .venv/dev.stamp  ## the sdist and the wheel of a release, in dist/
	$(PIP_INSTALL) twine
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

lock: .venv/dev.stamp  ## write the installed versions back to requirements.lock
	echo '# Written by `make lock`; the Makefile installs with this file as a constraint.' > requirements.lock
	$(BIN)/python -m pip freeze --exclude-editable --exclude vitrail | sed 's/+cpu$$//' >> requirements.lock

# The images' packages with the hashes of their files, in the versions of requirements.lock; needs the network, and uv on the PATH.
# torch comes from PyTorch's own index, as in the Dockerfile; where its wheel is at hand: make lock-images TORCH='--find-links FOLDER'
TORCH ?= --torch-backend cpu
LOCK := uv pip compile --quiet --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links --python-version 3.11 \
	--python-platform x86_64-manylinux_2_28 --constraint requirements.lock --custom-compile-command 'make lock-images'

lock-images:  ## write the lock files of deploy/Dockerfile
	echo hatchling | $(LOCK) --output-file deploy/build.lock -
	$(LOCK) --output-file deploy/export.lock deploy/requirements-export.txt
	$(LOCK) $(TORCH) --extra serve --output-file deploy/torch.lock pyproject.toml deploy/requirements-torch.txt

clean:
	rm -rf .venv build .pytest_cache .ruff_cache .hypothesis

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "vitrail needs Python 3.11 or newer; got " + sys.version.split()[0] + "; run: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv .venv

.venv/core.stamp: pyproject.toml requirements.lock | .venv/bin/python
	$(PIP_INSTALL) --editable .
	touch $@

# torch is installed first, by itself: together with it, another library could pull a different build.
.venv/dev.stamp: .venv/core.stamp
	$(PIP_INSTALL) --editable '.[dev,peers,datasets,tables,dicom,track,wandb,mlflow,search,tune,ray,s3,export,serve,docs]'
	touch $@
