# Every target sets up what it needs. `make demo` and `make test` are all a newcomer has to know.

SHELL := /bin/bash
PYTHON ?= python3
# Test processes: one more than cores, because many tests wait, at most four. Each has a control plane of its own.
CORES := $(shell n=$$(nproc); echo $$((n > 4 ? 4 : n)))
WORKERS ?= $(shell echo $$(($(CORES) < 4 ? $(CORES) + 1 : 4)))
# Each process takes whole files, in the order of tests/slowest_first.py.
FILES := --dist loadfile --no-loadscope-reorder
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
# Development pins one torch (constraints.txt); the product works with torch >= 2.4.
TORCH ?= torch==2.13.0
# Clients of stores of checkpoints, and a server that speaks S3: 100 MB of disk, for tests/stores.
STORES := .work/stores
# The same for gcsfs and adlfs: 600 MB, since Azurite is a program for node. Not part of `make test`.
CLOUDS := .work/clouds
SOURCES := operator devcluster worker_image/src tests demo benchmarks worker_image/examples scripts

.PHONY: help setup demo demo-session test test-long test-unit coverage check format generate transcript docs constraints locks sbom dist chaos chaos-short mutants e2e e2e-images bench first-minutes gpu torch-matrix frameworks frameworks-short frameworks-env stores-env clouds clouds-env clean

help: ## Show the targets.
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: ## Create or check the environment (.venv).
	@TORCH="$(TORCH)" PYTHON="$(PYTHON)" scripts/setup.sh

demo: setup ## Run the main job: real training through a real API server while pods are killed.
	@$(PY) -m demo

demo-session: setup ## The same story with a script that keeps its memory over every change.
	@$(PY) -m demo --session

test: setup ## Run the tests; the summary says what was skipped and why. WORKERS=n: in so many processes.
	@$(MAKE) --no-print-directory stores-env || echo "tests/stores is skipped: its environment could not be made"
	@echo "make test leaves out fault injection (make chaos-short), container nodes (make e2e), training stacks (make frameworks)"
	@$(PY) -m pytest -n $(WORKERS) $(FILES) -m "not chaos and not container" \
	  --ignore tests/frameworks/test_frameworks.py --ignore tests/frameworks/test_undisturbed.py $(PYTEST_ARGS)

$(STORES)/.made: tests/stores/requirements.txt
	@$(PYTHON) -m venv $(STORES)
	@$(STORES)/bin/pip install --quiet --disable-pip-version-check --no-deps -r $<
	@touch $@

stores-env: $(STORES)/.made ## Make the environment of tests/stores: an archive of checkpoints in a store that speaks S3.

$(CLOUDS)/.made: tests/stores/clouds.txt tests/stores/package.json
	@$(PYTHON) -m venv $(CLOUDS)
	@$(CLOUDS)/bin/pip install --quiet --disable-pip-version-check --no-deps -r $<
	@cp tests/stores/package.json $(CLOUDS) && cd $(CLOUDS) && npm install --silent --no-audit --no-fund --no-package-lock --ignore-scripts
	@touch $@

clouds-env: $(CLOUDS)/.made

clouds: setup clouds-env ## An archive in stores that speak Google's and Azure's protocols: needs node and npm.
	@$(PY) -m pytest -q tests/worker/archive/test_stores.py -k "google or azure" $(PYTEST_ARGS)

test-long: setup ## Run what `make test` leaves out for its time: further cases of the slowest tests, more examples.
	@$(PY) -m pytest -n $(WORKERS) $(FILES) --long -m "(long or hypothesis) and not container" $(PYTEST_ARGS)

test-unit: setup ## Run only the tests that need no cluster and start no training processes.
	@$(PY) -m pytest tests/controller tests/test_layout.py -m "not cluster" $(PYTEST_ARGS)

# Lines and branches that run in pytest's own processes; what a started process does is not counted. Tens of minutes.
coverage: setup ## Measure what the fast suites cover, with a floor; not part of `make test`.
	@$(PY) -m pytest tests/controller tests/worker -m "not cluster and not gpu" -n $(WORKERS) --dist loadfile \
	  --cov --cov-report=term:skip-covered --cov-report=xml:.work/coverage.xml $(PYTEST_ARGS)

check: setup ## Lint, types, import contracts, generated files, layout, numbers, mutants that fit.
	@$(BIN)/ruff format --check $(SOURCES)
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/mypy operator/elasticjob_operator devcluster/elasticjob_devcluster worker_image/src/elasticjob demo
	@$(BIN)/mypy --python-version 3.10 worker_image/src/elasticjob
	@$(BIN)/mypy tests benchmarks scripts/*.py
	@$(BIN)/lint-imports
	@$(PY) scripts/generate.py --check
	@$(PY) scripts/locks.py --check
	@$(PY) scripts/check_layout.py
	@$(PY) scripts/check_numbers.py
	@$(PY) -m pytest tests/chaos/test_chaos_mutants.py -q -k fits -p no:cacheprovider

format: setup ## Format and fix what can be fixed.
	@$(BIN)/ruff format $(SOURCES)
	@$(BIN)/ruff check --fix $(SOURCES)

generate: setup ## Write the generated files: CRD, install.yaml, API reference, tables of the documentation.
	@$(PY) scripts/generate.py

transcript: setup ## Play the commands of docs/transcript.md and write what they print.
	@ELASTICJOB_WRITE_TRANSCRIPT=1 $(PY) -m pytest tests/manifests/test_transcript.py -q -k happens

constraints: setup ## Pin what is installed now in constraints.txt.
	@scripts/constraints.sh

# Tools of a release, not of the tests: an environment of their own.
RELEASE := .work/release
$(RELEASE)/bin/uv: Makefile
	@$(PYTHON) -m venv $(RELEASE)
	@$(RELEASE)/bin/pip install --quiet --disable-pip-version-check uv==0.13.9 cyclonedx-bom==7.5.0
	@touch $@

# So are those of the documentation.
DOCS := .work/docs
$(DOCS)/bin/mkdocs: docs/requirements.txt
	@$(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	@touch $@

# Not --quiet: warnings that are not shown are not counted, and --strict would let them pass.
docs: $(DOCS)/bin/mkdocs ## Build the documentation site into .work/site; a broken link fails. DOCS_ARGS=serve shows it.
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs $(or $(DOCS_ARGS),build --strict)

locks: setup $(RELEASE)/bin/uv ## Write the locks of the images: every package, with the hashes of its files.
	@$(PY) scripts/locks.py --uv $(RELEASE)/bin/uv

sbom: $(RELEASE)/bin/uv ## Write a bill of materials (CycloneDX) for each image to dist/.
	@mkdir -p dist
	@$(RELEASE)/bin/cyclonedx-py requirements --output-reproducible --of JSON -o dist/operator.cdx.json requirements/operator.txt
	@$(RELEASE)/bin/cyclonedx-py requirements --output-reproducible --of JSON -o dist/runtime.cdx.json worker_image/requirements/runtime.txt
	@cat worker_image/requirements/torch.txt worker_image/requirements/runtime.txt | \
	  $(RELEASE)/bin/cyclonedx-py requirements --output-reproducible --of JSON -o dist/worker.cdx.json -
	@echo "dist/operator.cdx.json dist/runtime.cdx.json dist/worker.cdx.json"

dist: setup ## Build what a release has into dist/: wheels, sdists, chart, manifests, SBOM, checksums; images if it can.
	@$(PY) scripts/dist.py build
	@$(MAKE) --no-print-directory sbom
	@$(PY) scripts/dist.py checksums

chaos-short: setup ## Fault injection, the short form: a few minutes.
	@$(PY) -m pytest tests/chaos tests/model -m chaos -n $(CORES) --dist loadfile $(PYTEST_ARGS)

mutants: setup ## Random small mistakes in the source: do the tests notice? SEED=n COUNT=k ONLY=path TESTS=folders
	@$(PY) -m scripts.mutants --seed $(or $(SEED),1) --count $(or $(COUNT),20) $(if $(ONLY),--only $(ONLY)) $(if $(TESTS),--tests $(TESTS))

chaos: setup ## Fault injection, all of it: hours. CHAOS_ARGS="--seed N --only crash" repeats a part.
	@PYTHONPATH=tests:. $(PY) -m chaos $(CHAOS_ARGS)

e2e-images: setup ## Build the images of `make e2e`, and install what builds them.
	@scripts/e2e.sh images

e2e: setup ## Build the images and prove the install on a container node (root, Debian).
	@scripts/e2e.sh $(PYTEST_ARGS)

bench: setup ## Benchmarks against what people use today; QUICK=1 for the short form.
	@$(PY) -m benchmarks $(if $(QUICK),--quick)

first-minutes: setup ## Time what a newcomer does: first local job, a changed script sent again, the page in a browser.
	@PYTHONPATH=tests:. timeout 600 $(PY) -m benchmarks.first_minutes

# With the machine's own python, which needs torch and pytest and nothing else: no environment, no network.
gpu: ## The checks on one CUDA device: PYTHON=python3 GPU_SECONDS=470 OUT=.work/gpu DRY=1 (without a device) GPU_ARGS="-k name"
	@ELASTICJOB_GPU=1 DRY="$(DRY)" OUT="$(OUT)" GPU_SECONDS="$(GPU_SECONDS)" PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 \
	  PYTHONPATH="worker_image/src:tests$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON) -m pytest -c tests/gpu/pytest.ini --confcutdir=tests/gpu tests/gpu -v $(GPU_ARGS)

torch-matrix: $(RELEASE)/bin/uv ## The worker's tests under other versions of torch: TORCH="2.6.0 2.15.0". 5 GB of disk each.
	@UV=$(RELEASE)/bin/uv $(PYTHON) scripts/torch_matrix.py $(TORCH)

# The training stacks that people use, each pinned: 3 GB of disk. Their torch is the one of `setup`.
FRAMEWORKS := .work/frameworks
$(FRAMEWORKS)/.made: tests/frameworks/requirements.txt tests/frameworks/constraints.txt
	@$(PYTHON) -m venv $(FRAMEWORKS)
	@DS_BUILD_OPS=0 $(FRAMEWORKS)/bin/pip install --quiet --disable-pip-version-check \
	  -r tests/frameworks/requirements.txt -c tests/frameworks/constraints.txt
	@$(FRAMEWORKS)/bin/pip install --quiet --disable-pip-version-check --no-deps -e worker_image
	@touch $@

frameworks-env: $(FRAMEWORKS)/.made ## Make the environment of `make frameworks`.

frameworks: setup $(FRAMEWORKS)/.made ## Training stacks through every change: transformers, Lightning, DeepSpeed, JAX and others.
	@$(PY) -m pytest tests/frameworks -q -rA $(PYTEST_ARGS)

# What CI runs of it: each stack once, as we recommend to use it.
SHORT := not test_undisturbed and (transformers-adapter or accelerate-adapter or lightning-session or deepspeed-zero-2 or fsdp2 or horovod or mpi4py or parquet or jax or trackers or polars)
frameworks-short: setup $(FRAMEWORKS)/.made ## The same in minutes: each stack once.
	@$(PY) -m pytest tests/frameworks -q -rA -k "$(SHORT)" $(PYTEST_ARGS)

clean: ## Remove the environment and everything that was made here.
	@rm -rf $(VENV) .work dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
