# The action's image. It holds two Pythons that never meet: /opt/repro-gate has the gate and its
# hash-checked dependencies, and nothing else; the system's own Python has torch and is the
# training's. On GitHub no build argument can be given, so every default has to be right.
ARG BASE_IMAGE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
# An image that is a folder of wheels, looked through before the package index.
ARG WHEELS_IMAGE=scratch

FROM ${WHEELS_IMAGE} AS wheels

FROM ${BASE_IMAGE} AS dependencies
WORKDIR /build
COPY requirements/build.txt requirements/gate.txt requirements/
# The gate's own code lies beside its dependencies, so that a change of it is one small layer.
RUN python -m venv --without-pip /opt/repro-gate \
    && pip --python /opt/repro-gate/bin/python install \
        --no-cache-dir --only-binary :all: --no-deps --require-hashes -r requirements/gate.txt \
    && pip install --no-cache-dir --only-binary :all: --no-deps --require-hashes -r requirements/build.txt \
    && echo /opt/repro-gate/code \
        > "$(/opt/repro-gate/bin/python -c 'import site; print(site.getsitepackages()[0])')/code.pth"

FROM dependencies AS code
COPY pyproject.toml README.md LICENSE ./
COPY gate gate
COPY repro_gate repro_gate
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir dist . \
    && pip install --no-cache-dir --no-deps --target /code dist/*.whl
COPY container/post-step /code/bin/post-step

FROM ${BASE_IMAGE}
# git only reads the repository; its version decides nothing, and old ones leave Debian's mirrors.
# git-lfs fetches declared data that the clone lacks.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends git git-lfs \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
# What the training imports: requirements/training.txt, requirements/training-cpu.txt, or empty.
ARG TRAINING_REQUIREMENTS=requirements/training.txt
# torch.compile and Triton build code where they train, launchers in C and kernels for a CPU in C++, against
# Python's own headers, which the base has.
# hadolint ignore=DL3008
RUN if [ -n "${TRAINING_REQUIREMENTS}" ]; then \
        apt-get update \
        && apt-get install -y --no-install-recommends gcc g++ libc6-dev \
        && rm -rf /var/lib/apt/lists/* /var/cache/apt/*; \
    fi
COPY requirements/training.txt requirements/training-cpu.txt /opt/requirements/
RUN --mount=type=bind,from=wheels,target=/wheels \
    if [ -n "${TRAINING_REQUIREMENTS}" ]; then \
        pip install --no-cache-dir --only-binary :all: --find-links /wheels \
            -r "/opt/${TRAINING_REQUIREMENTS}"; \
    fi
# A host whose Docker uses NVIDIA's runtime by default hands over its GPUs when asked like this;
# a step's own `env:` overrides it, for example to name one GPU.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
# The version, in the images of a release alone: without it the action knows that a job built it.
ARG RELEASE=
ENV REPRO_GATE_RELEASE=${RELEASE}
# -I: neither the working directory, which is the code under test, nor PYTHON* variables nor a
# user's site-packages may decide what the gate itself imports.
ENTRYPOINT ["/opt/repro-gate/bin/python", "-I", "-u", "-m", "gate", "action"]
COPY --from=dependencies /opt/repro-gate /opt/repro-gate
COPY --from=code /code /opt/repro-gate/code
