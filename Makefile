# Every task of the project. `make` or `make help` lists them.

# The Python that the environment is made with; what runs in the environment is not to find it by this name.
PYTHON ?= python3
unexport PYTHON
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Of 27,000 modules the tests import a few thousand: Python compiles these when it first needs them.
INSTALL := $(PIP) install --quiet --no-compile -c constraints.txt
RECORDED := build/demo-collect
LOGO := src/ccl_bench/report/render/assets/logo.svg
DEMO := build/demo
EXAMPLE := examples/runs/megatron-tp8-a100
CORPUS := ../shared/traces
EXTRAS := cluster,images,leaderboard,mcp,mlflow,notebook,remote,tensorboard,wandb,watch

# What is installed is written down beside it, so that a set-up that is up to date costs nothing.
CREATED := $(VENV)/.created
CORE := $(VENV)/.installed-core
GROUPS := $(VENV)/.installed-groups
TRAINING := $(VENV)/.installed-training
TEST := $(VENV)/.installed-test
CHECK := $(VENV)/.installed-check
DOCS := $(VENV)/.installed-docs
WHEELS := $(VENV)/.installed-wheels
PINS := pyproject.toml constraints.txt
# The installation compiles the native readers, and makes the scripts of charts.
NATIVE := hatch_build.py $(wildcard src/ccl_bench/trace/native/*.[ch] src/ccl_bench/trace/formats/kineto/native/*.[ch] \
	src/ccl_bench/whatif/native/*.[ch])

ifndef CCL_BENCH_CORPUS
ifneq ($(wildcard $(CORPUS)),)
export CCL_BENCH_CORPUS := $(abspath $(CORPUS))
endif
endif

.DEFAULT_GOAL := help
.PHONY: help demo demo-collect test test-quick check format bench benchmark scale strip workloads soak attacks fuzz damage mutants defences audit audit-numbers injections diagnoses conclusions predict predict-recorded search docs man outputs sources pictures logo wheels sbom services lock clean

help: ## List the tasks
	@echo "usage: make TASK"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(CORE) ## Install the core and the board, measure a bundled run, and write its report and timeline
	@echo
	$(BIN)/ccl-bench demo --output $(DEMO)
	@echo
	$(BIN)/ccl-metrics $(EXAMPLE) --all

# Four threads would fight for the cores; what the profiler says of itself would bury the rest.
demo-collect: export OMP_NUM_THREADS = 1
demo-collect: export KINETO_LOG_LEVEL = 99
demo-collect: export TORCH_CPP_LOG_LEVEL = ERROR
demo-collect: $(TRAINING) ## Record a training of four processes on the CPU, and validate, measure and report it
	@echo
	$(BIN)/ccl-bench collect --output $(RECORDED) --force -- \
		$(BIN)/torchrun --standalone --nproc-per-node 4 examples/record/train_fsdp_tp.py
	@echo
	$(BIN)/ccl-bench validate $(RECORDED)
	@echo
	$(BIN)/ccl-metrics $(RECORDED) --all

test: $(TEST) ## Install what the tests need and run all of them that this machine can
	$(BIN)/python -m pytest -n auto $(PYTEST_OPTIONS)

test-quick: $(TEST) ## Run the tests that start no service and record nothing
	CCL_BENCH_QUICK=1 $(BIN)/python -m pytest -n auto --ignore tests/system $(PYTEST_OPTIONS)

check: $(TEST) $(CHECK) ## Lint, formatting, types, layers of imports, shell scripts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports --no-logo
	@if command -v shellcheck > /dev/null; then \
		echo shellcheck && grep -lrE '^#!.*[ /](ba)?sh' .ci scripts tools examples benchmarks workloads \
			clusters perlmutter trace_collection trace_gen \
			2> /dev/null | xargs -r shellcheck --external-sources; \
	else \
		echo "shellcheck is not installed: 'make services' installs it; shell scripts were not checked"; \
	fi

format: $(TEST) ## Format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

outputs: $(TEST) ## Update the outputs of commands and notebooks in README and manual
	$(BIN)/python tests/docs/pages.py
	$(BIN)/python docs/render_notebooks.py

sources: $(TEST) ## Update the table of recordings and metrics in docs/profilers.md (needs CCL_BENCH_CORPUS)
	$(BIN)/python docs/source_table.py

pictures: $(TEST) ## Draw the pictures of README and manual from the output of the commands (needs Chromium)
	$(BIN)/python docs/draw_pictures.py

logo: $(TEST) ## Draw assets/logo.svg and assets/logo.png from the logo of the pages
	cp $(LOGO) assets/logo.svg
	$(BIN)/python -c 'import vl_convert; print("drawn", open("assets/logo.png", "wb").write(vl_convert.svg_to_png(open("assets/logo.svg").read(), scale=4)), "bytes")'

bench: $(TEST) ## Measure speed and memory on this machine
	$(BIN)/python benchmarks/load.py
	$(BIN)/python benchmarks/leaderboard.py

benchmark: $(TEST) ## Measure the public recordings of benchmark/ and publish them into build/benchmark (needs CCL_BENCH_CORPUS)
	$(BIN)/python scripts/benchmark.py --recompute

scale: $(TEST) ## Measure runs of 64 to 1,024 ranks, on this machine and on two Dask workers (13 GB of disk)
	$(BIN)/python benchmarks/scale.py --dask 2

strip: $(TEST) ## Measure reports of 8 and 256 ranks in Chromium: size, time to open, frame time
	$(BIN)/python benchmarks/strip.py

workloads: $(TEST) ## Train and record all seven workloads under Slurm on this machine, and check their files (as root)
	$(BIN)/python tests/system/slurm/all_seven.py

soak: $(TEST) ## Publish for twenty minutes while servers and workers are killed, on SQLite and PostgreSQL
	$(BIN)/python tests/publishing/soaking.py --minutes 10
	$(BIN)/python tests/publishing/soaking.py --minutes 10 --postgresql
	$(BIN)/python -m pytest -q tests/hostile/web/slow_connections.py
	SCHEMATHESIS_PHASES=coverage,fuzzing $(BIN)/python -m pytest -q tests/publishing/test_publishing_interface.py
	MUTATIONS_EVERY=3 $(BIN)/python -m pytest -q tests/publishing/test_publishing_mutations.py

RANDOM_TESTS = $(addprefix tests/,analysis/serving analysis/execution_trace/test_et_usual_nodes.py \
	analysis/memory/test_memory_columns.py analysis/test_intervals.py analysis/test_breakdown.py \
	analysis/communication/test_call_parts.py analysis/device/test_idle.py \
	analysis/recorder/test_hang_divergence.py whatif/test_event_graph.py \
	trace/test_kineto_pieces.py trace/test_unpickling.py trace/test_sqlite_native.py card)

fuzz: $(TEST) ## Damage runs, pieces of traces and inputs of readers for half an hour, and check what the program promises
	$(BIN)/python tests/trace/fuzzing.py --inputs 50000 --sanitized
	$(BIN)/python tests/trace/guided_native.py --seconds 300
	$(BIN)/python -m pytest -q tests/trace/guided_plants.py tests/trace/sanitized_tests.py
	$(BIN)/python -m pytest -q --hypothesis-profile=thorough $(RANDOM_TESTS)
	$(BIN)/python tests/hostile/campaigns/guided.py --seconds 320
	$(BIN)/python tests/hostile/campaigns/campaign.py --minutes 10 --report build/fuzz/campaign.json

attacks: $(TEST) ## Attack disks, caches, files that change, and a board whose PostgreSQL is killed, for half an hour (as root)
	$(BIN)/python tests/hostile/campaigns/disks.py
	$(BIN)/python tests/hostile/campaigns/caches.py --minutes 5
	$(BIN)/python tests/hostile/campaigns/changing.py --minutes 5
	$(BIN)/python tests/hostile/campaigns/many_files.py
	$(BIN)/python tests/publishing/soaking.py --minutes 5 --postgresql --kill-database

damage: $(TEST) ## Damage what real runs mean, print numbers that changed silently, and update the manual (needs CCL_BENCH_CORPUS)
	$(BIN)/python tests/hostile/campaigns/damage.py $(DAMAGE_OPTIONS)

mutants: $(TEST) ## Change the arithmetic in 60 places, one at a time, and print the changes that no quick test detects
	$(BIN)/python tests/mutants.py $(MUTANTS_OPTIONS)

defences: $(TEST) ## Take each defence of the threat model out, count the tests that notice, and update the manual
	$(BIN)/python tests/hostile/defences/defences.py $(DEFENCES_OPTIONS)

audit: $(TEST) ## Look for known vulnerabilities of the pinned packages (needs the network)
	$(BIN)/python -m pip --disable-pip-version-check check
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip --disable-pip-version-check install --quiet pip-audit
	build/audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip

diagnoses: $(TEST) ## Count correct diagnoses and false alarms in runs with and without injected causes, and update the manual
	PYTHONPATH=tests $(BIN)/python tests/diagnosis/count_diagnoses.py

conclusions: $(TEST) ## Diagnose simulated runs whose causes and gains are known, print the wrong answers, and update the manual
	PYTHONPATH=tests/conclusions $(BIN)/python tests/conclusions/count_conclusions.py $(CONCLUSIONS_OPTIONS)

audit-numbers: $(TEST) ## Recompute metrics of every run of the corpus with plain Python, and print whether they agree
	$(BIN)/python tests/oracles/audit_numbers.py

injections: $(TEST) ## Record runs with slow ranks, stages and loaders, and compare predicted with healthy steps
	$(BIN)/python tests/whatif/injections/campaign.py

predict: $(TEST) ## Print the errors of predictions on measured steps, with the splits and seeds that gave them
	$(BIN)/python benchmarks/predictions.py

search: $(TEST) ## Search under a real Slurm with torchtitan on processors, killed on the way (as root, for ten minutes)
	$(BIN)/python tests/system/slurm/search_on_slurm.py

predict-recorded: $(TEST) ## Predict pipelines from a recording, then record them, and print both
	$(BIN)/python tests/predict/held_out/campaign.py

docs: $(DOCS) ## Build the manual into build/docs/site/
	$(BIN)/python docs/generate.py build/docs
	$(BIN)/zensical build --clean --strict --config-file build/docs/zensical.toml
	@echo "open build/docs/site/index.html"

man: $(CORE) ## Write the man pages from the help of the commands
	$(BIN)/python docs/man.py

wheels: $(WHEELS) ## Build into dist/: wheels for Linux with the native reader, one without it, and the source
	@PATH="$(abspath $(BIN)):$$PATH" bash .ci/wheels dist

# Of a fresh environment, in which every file that was installed has a hash of hashes.txt.
sbom: $(TEST) ## List what a user installs with all extras, after checking the hash of each file: dist/ccl-bench.cdx.json
	rm -rf build/sbom
	$(PYTHON) -m venv --without-pip build/sbom/venv
	$(PIP) --python build/sbom/venv/bin/python install --quiet --require-hashes -r hashes.txt
	$(PIP) wheel --quiet --no-deps --wheel-dir build/sbom .
	$(PIP) --python build/sbom/venv/bin/python install --quiet --no-deps --no-index --find-links build/sbom ccl-bench
	build/sbom/venv/bin/ccl-bench demo --output build/sbom/demo
	mkdir -p dist
	$(BIN)/cyclonedx-py environment build/sbom/venv --pyproject pyproject.toml --validate --output-reproducible \
		--output-file dist/ccl-bench.cdx.json

services: ## Install the Debian packages that the optional tests use (as root)
	@bash .ci/services

lock: ## Resolve all dependencies again, and write constraints.txt, hashes.txt and hashes-build.txt
	rm -rf build/lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	build/lock/bin/python -m pip install --quiet -e '.[$(EXTRAS)]' torch==2.13.0 \
		--group test --group check --group docs
	build/lock/bin/python -m pip freeze --exclude-editable | LC_ALL=C grep -E '^[A-Za-z0-9._-]+==[^ ]+$$' \
		| sed -E 's/[+][a-z0-9.]+$$//' > constraints.txt
	build/lock/bin/uv pip compile --quiet --generate-hashes --no-annotate --no-header --all-extras \
		--python-version 3.11 --constraint constraints.txt --output-file hashes.txt pyproject.toml
	build/lock/bin/python -c 'import tomllib; print("pip", *tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
		| build/lock/bin/uv pip compile --quiet --generate-hashes --no-annotate --no-header \
		--python-version 3.11 --constraint constraints.txt --output-file hashes-build.txt -
	rm -rf build/lock

clean: ## Remove the files of the other tasks, including the environment
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(CREATED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "ccl-bench needs Python 3.11 or later; $(PYTHON) is older or missing."; \
		echo "  fix: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || { \
		echo "$(PYTHON) cannot create a virtual environment."; \
		echo "  fix: apt-get install python3-venv"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(BIN)/python -m ensurepip > /dev/null
	@touch $@

$(CORE): $(CREATED) $(PINS) $(NATIVE)
	$(PIP) install --quiet -c constraints.txt -e '.[leaderboard]'
	@touch $@

# Dependency groups are read by pip 25.1 and later.
$(GROUPS): $(CREATED)
	$(PIP) install --quiet --upgrade 'pip>=25.1'
	@touch $@

$(TRAINING): $(GROUPS) $(PINS) $(NATIVE)
	$(INSTALL) -e . --group training
	@touch $@ $(CORE)

# Two come meanwhile, in a process of their own: ziglang has a quarter of all files, and torchtitan without
# what it asks for, which would be another torch.
$(TEST): $(GROUPS) $(PINS) $(NATIVE)
	$(INSTALL) --no-deps torchtitan==0.2.2 ziglang & meanwhile=$$!; \
		$(INSTALL) -e '.[$(EXTRAS)]' --group test && wait $$meanwhile
	@touch $@ $(CORE) $(DOCS)

$(CHECK): $(GROUPS) $(PINS)
	$(INSTALL) --group check
	@touch $@

$(DOCS): $(CORE) $(GROUPS) $(PINS)
	$(INSTALL) --group docs
	@touch $@

$(WHEELS): $(CREATED) $(GROUPS) $(PINS)
	$(INSTALL) --group wheels
	@touch $@
