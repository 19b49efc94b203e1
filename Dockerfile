# ccl-bench in a container: the commands, and with an extra what needs one.
#
#   docker build --tag ccl-bench .
#   docker run --rm --volume "$PWD:/data" ccl-bench inspect RUN
#   docker run --rm --volume "$PWD:/data" --entrypoint ccl-metrics ccl-bench RUN --all
#
#   docker build --tag ccl-bench-leaderboard --build-arg EXTRAS=leaderboard .
#   docker run --rm --volume leaderboard:/data --publish 8000:8000 ccl-bench-leaderboard serve . --host 0.0.0.0
#
# This file is linted (tests/house/test_house_dockerfile.py) and not built by the tests: where they run, no
# container can be built.

# The digest is that of the index of all platforms, as several public repositories state it for this tag.
# `docker buildx imagetools inspect python:3.11-slim-bookworm` shows the newest.
FROM python:3.11.16-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b AS base

FROM base AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY hashes.txt hashes-build.txt hatch_build.py pyproject.toml CHANGELOG.md LICENSE README.md ./
COPY clusters clusters
COPY docs/man docs/man
COPY examples/runs examples/runs
COPY perlmutter perlmutter
COPY scripts/install_hashed.sh scripts/install_hashed.sh
COPY src src
COPY workloads workloads
# Extras to install, with commas between them: leaderboard,remote.
ARG EXTRAS=""
RUN python -m venv --without-pip /opt/ccl-bench \
    && PYTHON=/opt/ccl-bench/bin/python bash scripts/install_hashed.sh "$EXTRAS"

FROM base
COPY --from=build /opt/ccl-bench /opt/ccl-bench
# What it writes into /data has the owner that `docker run --user` names; 1000 without it.
RUN useradd --uid 1000 --create-home bench \
    && install --directory --owner bench --group bench /data
ENV PATH="/opt/ccl-bench/bin:$PATH" \
    CCL_BENCH_CACHE=/tmp/ccl-bench
USER bench
WORKDIR /data
EXPOSE 8000
ENTRYPOINT ["ccl-bench"]
CMD ["--help"]
