# make demo | make test | make venv | make stock | make unit | make lint | make docs | make bench | make soak | make dist
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What the demo needs is in $(VENV) once the first file is there, and all that the tests need with the second.
DEMO_STAMP := $(VENV)/.installed-demo
STAMP := $(VENV)/.installed
JOBS ?= 2
PACKAGES := broker coordination flakelog idgen partition_manager pyspark_flakelog spark_bridge spout
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

# Stock clients in other languages, for tests/compat: Kafka's jars by Maven, Node's packages by npm, franz-go by Go.
JARS := tests/compat/java/target/classpath
KAFKA39 := tests/compat/kafka_cluster/target/classpath
MIRROR_MAKER := tests/compat/mirror_maker/target/classpath
NODE := tests/compat/node/node_modules/.package-lock.json
FRANZ := tests/compat/go/target/stock
# The tests that franz-go and librdkafka have of their own, for `make soak`.
FRANZ_TESTS := tests/compat/go/target/kgo.test
SSLYZE := build/sslyze/bin/sslyze
RDKAFKA_TESTS := build/librdkafka/librdkafka-2.0.2/tests/test-runner
# Spark's connector for Kafka, by Maven, for tests and benchmarks. For benchmarks: Storm's storm.py, by Maven, and what
# PyPI has beside ours.
CONNECTOR := benchmarks/connector/target/classpath
STORM_PY := benchmarks/storm_py/target/classpath
ID_PACKAGES := build/id-packages
STREAM_PACKAGES := build/stream-packages

.PHONY: demo test venv python bytecode stock suites storm unit unit-broker unit-log unit-wire unit-worlds unit-others \
  lint style types house docs compat bench soak dist clean \
  stage-compat stage-unit beside-compat
.DEFAULT_GOAL := test

venv: $(STAMP)

# The tests add to what the demo installed. Neither removes anything, so the order of `make demo` and `make test` is free.
$(DEMO_STAMP): setup.cfg pyproject.toml constraints.txt | python
	@$(PYTHON) set_up.py install $(VENV) spark,demo 'the demo, 1.2 GB with Spark and a Java runtime'
	@touch $@

$(STAMP): setup.cfg pyproject.toml constraints.txt | $(DEMO_STAMP)
	@$(PYTHON) set_up.py install $(VENV) all,test 'the tests, 2.3 GB with what the demo needs'
	@touch $@

# An environment of another Python than PYTHON= names is never used in silence.
python:
	@$(PYTHON) set_up.py check $(VENV) $(if $(filter command,$(firstword $(origin PYTHON))),--named)

# Python keeps what it compiles. Where this is set, each test process would compile all tests and their helpers again.
unexport PYTHONDONTWRITEBYTECODE

# Compiled beforehand, as an installed package is: a server starts in two thirds of the time.
bytecode: $(DEMO_STAMP) | python
	@$(BIN)/python -m compileall -q -j $(JOBS) $(PACKAGES)

# Where there is no Maven, npm or Go, or they cannot reach their registries, the tests that need them say so.
stock: $(JARS) $(KAFKA39) $(MIRROR_MAKER) $(NODE) $(FRANZ) $(CONNECTOR) storm

# Apache Storm, where `flakelog spout run --storm` looks for it; nothing to do if it is there.
storm: venv
	@$(BIN)/python -m flakelog.storm.jars

$(JARS): tests/compat/java/pom.xml
	@command -v mvn > /dev/null || { echo "no Maven (mvn): Kafka's Java clients and tools are not tested"; exit 0; }; \
	  echo "fetching Kafka's Java clients and tools: once, 60 MB"; \
	  mvn -q -B -f $< dependency:build-classpath -Dmdep.outputFile=target/classpath && touch $@ \
	  || echo "Maven failed: Kafka's Java clients and tools are not tested"

$(KAFKA39): tests/compat/kafka_cluster/pom.xml
	@command -v mvn > /dev/null || { echo "no Maven (mvn): our brokers are not tested beside Kafka 3.9.1's"; exit 0; }; \
	  echo "fetching Kafka 3.9.1: once, 60 MB"; \
	  mvn -q -B -f $< dependency:build-classpath -Dmdep.outputFile=target/classpath && touch $@ \
	  || echo "Maven failed: our brokers are not tested beside Kafka 3.9.1's"

$(MIRROR_MAKER): tests/compat/mirror_maker/pom.xml
	@command -v mvn > /dev/null || { echo "no Maven (mvn): mirrors are not compared with MirrorMaker 2"; exit 0; }; \
	  echo "fetching Kafka's MirrorMaker 2: once, 40 MB"; \
	  mvn -q -B -f $< dependency:build-classpath -Dmdep.outputFile=target/classpath && touch $@ \
	  || echo "Maven failed: mirrors are not compared with MirrorMaker 2"

$(NODE): tests/compat/node/package.json tests/compat/node/package-lock.json
	@command -v npm > /dev/null || { echo "no Node.js (npm): its Kafka clients are not tested"; exit 0; }; \
	  echo "fetching Node's Kafka clients: once, 60 MB"; \
	  npm ci --prefix tests/compat/node --silent --no-fund --no-audit && touch $@ \
	  || echo "npm failed: Node's Kafka clients are not tested"

$(FRANZ): tests/compat/go/stock.go tests/compat/go/go.mod tests/compat/go/go.sum
	@command -v go > /dev/null || { echo "no Go: franz-go is not tested"; exit 0; }; \
	  echo "building franz-go: once, a minute"; \
	  go build -C $(<D) -o target/stock . || echo "Go failed: franz-go is not tested"

suites: $(FRANZ_TESTS) $(RDKAFKA_TESTS) $(SSLYZE)

# A scanner of TLS, in an environment of its own, because it wants an older cryptography.
$(SSLYZE):
	@$(PYTHON) -m venv build/sslyze && build/sslyze/bin/python -m pip install --disable-pip-version-check -q sslyze==6.3.1 \
	  || echo "pip failed: the listeners of TLS are not scanned by sslyze"

$(FRANZ_TESTS): tests/compat/go/go.mod tests/compat/go/go.sum
	@command -v go > /dev/null || { echo "no Go: franz-go's own tests do not run"; exit 0; }; \
	  go test -C $(<D) -c -o target/kgo.test github.com/twmb/franz-go/pkg/kgo \
	  || echo "Go failed: franz-go's own tests do not run"

$(RDKAFKA_TESTS): tests/compat/librdkafka/build.sh tests/compat/librdkafka/sources.list
	@command -v apt-get > /dev/null || { echo "no Debian: librdkafka's own tests do not run"; exit 0; }; \
	  echo "building librdkafka and its tests: once, some minutes"; \
	  $< || echo "the build failed: librdkafka's own tests do not run"

demo: bytecode
	$(BIN)/flakelog demo

# Each stage prints how long it took. The cores' tests run beside compat: its tests often wait for other processes, and
# `nice` gives the cores' tests what compat leaves of the processors. They print their lines when they end.
stage = began=$$(date +%s); $(MAKE) --no-print-directory $(1) || exit; echo "make $(1): $$(($$(date +%s) - began)) s"

test: venv bytecode stock
	+@$(call stage,lint)
	+@$(call stage,docs)
	@$(MAKE) --no-print-directory -j 2 beside-compat stage-compat

stage-compat:
	+@$(call stage,compat)

beside-compat:
	@mkdir -p build; (nice -n 5 $(MAKE) --no-print-directory stage-unit) > build/unit.log 2>&1; code=$$?; cat build/unit.log; exit $$code

stage-unit:
	+@$(call stage,unit)

# Make 4 prints the lines of each of several checks together.
SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

# The checks of lint run beside each other, each on one core.
lint: venv
	@$(MAKE) --no-print-directory -j $(JOBS) $(SYNC) style types house

style:
	$(BIN)/python -m flake8 --jobs 1
	$(BIN)/python -m isort --check-only --quiet .

types:
	$(BIN)/python -m mypy

# Import contracts, and the rules of the house that no linter knows.
house:
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest tests/test_tidy.py

# README's pages and the API reference, in build/docs. Every warning is an error. Nothing is fetched.
docs: venv
	$(BIN)/mkdocs build --strict

# The cores: no Java, no sockets; four to five minutes on two cores. Each part is one process of pytest, and the last has
# all folders that no other names. Workers of xdist would take a quarter more CPU: each collects all tests, and sends each
# result to another process. The order of sets is fixed, so that a seed of a simulation has one history.
LOG := tests/broker/log
WIRE := $(addprefix tests/broker/,handlers largest_requests record wire)
WORLDS := $(addprefix tests/,oracle scenarios simulation)
unit_part = PYTHONHASHSEED=0 $(BIN)/python -m pytest -p no:xdist -m 'not soak' $(1)

unit: venv bytecode
	@$(MAKE) --no-print-directory --keep-going -j $(JOBS) $(SYNC) unit-broker unit-log unit-wire unit-worlds unit-others

unit-log:
	$(call unit_part,$(LOG))

unit-wire:
	$(call unit_part,$(WIRE))

unit-worlds:
	$(call unit_part,$(WORLDS))

unit-broker:
	$(call unit_part,tests/broker $(addprefix --ignore=,$(LOG) $(WIRE)))

unit-others:
	$(call unit_part,tests $(addprefix --ignore=,tests/compat tests/test_tidy.py tests/broker $(WORLDS)))

# Stock clients, real ZooKeeper, real Spark, the real server in a process of its own; a file stays in one process. They
# often wait for other processes, so two more run than there are cores.
compat: venv bytecode stock
	$(BIN)/python -m pytest tests/compat -m 'not soak' -n $$(($(JOBS) + 2)) --dist loadfile --no-loadscope-reorder

soak: venv bytecode suites
	PYTHONHASHSEED=0 $(BIN)/python -m pytest tests -m soak

# The sdist and the wheel of a release, in dist/, as a package index takes them.
dist: venv
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

bench: venv bytecode $(ID_PACKAGES)/.installed $(STREAM_PACKAGES)/.installed $(CONNECTOR) $(STORM_PY)
	$(BIN)/python -m benchmarks

$(CONNECTOR): benchmarks/connector/pom.xml
	@command -v mvn > /dev/null || { echo "no Maven (mvn): Spark's connector is not compared"; exit 0; }; \
	  echo "fetching Spark's connector: once, 10 MB"; \
	  mvn -q -B -f $< dependency:build-classpath -Dmdep.outputFile=target/classpath && touch $@ \
	  || echo "Maven failed: Spark's connector is not compared"

$(STORM_PY): benchmarks/storm_py/pom.xml
	@command -v mvn > /dev/null || { echo "no Maven (mvn): Storm's storm.py is not compared"; exit 0; }; \
	  echo "fetching Storm's storm.py: once, 10 KB"; \
	  mvn -q -B -f $< dependency:build-classpath -Dmdep.outputFile=target/classpath && touch $@ \
	  || echo "Maven failed: Storm's storm.py is not compared"

# Other makers of ids, to be measured beside ours; a directory each, as three of them bring a module named snowflake.
$(ID_PACKAGES)/.installed: constraints.txt benchmarks/id_packages.py | venv
	@echo "fetching other makers of ids"; rm -rf $(ID_PACKAGES); mkdir -p $(ID_PACKAGES)
	@for name in $$($(BIN)/python -m benchmarks.id_packages); do \
	  $(PIP) -q --target $(ID_PACKAGES)/$$name $$name || { rm -rf $(ID_PACKAGES)/$$name; echo "$$name is not measured"; }; \
	done; touch $@

# Other stream processors, to be measured beside our topologies; a directory each, as their dependencies exclude ours.
$(STREAM_PACKAGES)/.installed: benchmarks/stream_program.py | venv
	@echo "fetching other stream processors"; rm -rf $(STREAM_PACKAGES); mkdir -p $(STREAM_PACKAGES)
	@for each in $$($(BIN)/python -m benchmarks.stream_program); do \
	  directory=$(STREAM_PACKAGES)/$${each%%==*}; \
	  $(BIN)/python -m pip install --disable-pip-version-check -q --target $$directory $$each \
	  || { rm -rf $$directory; echo "$$each is not measured"; }; \
	done; touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info demo-out tests/compat/java/target tests/compat/kafka_cluster/target benchmarks/connector/target benchmarks/storm_py/target tests/compat/node/node_modules
