# One image for all services: `docker build .` in this folder; the command says which one runs.
# `docker build --target testbed .` adds what deploy/compose simulates: Talos machines and joining nodes.
#
# BASE needs python3 (3.11 or newer), BUILDER also its pip, and both the same interpreter at the same path. A tag moves;
# what is built twice alike names the digest: --build-arg=BASE=docker.io/library/python@sha256:...
ARG BASE=docker.io/library/python:3.11-slim-bookworm
ARG BUILDER=${BASE}

FROM ${BUILDER} AS dependencies
WORKDIR /src
COPY requirements-image.lock requirements-build.lock ./
# What builds wheels lies beside the image's environment; nothing is fetched without its hash.
RUN python3 -m venv --without-pip /app \
 && python3 -m pip install --quiet --no-cache-dir --require-hashes --target /build -r requirements-build.lock \
 && PYTHONPATH=/build python3 -m pip wheel --quiet --no-cache-dir --require-hashes --no-build-isolation \
    --wheel-dir /locked -r requirements-image.lock \
 && python3 -m pip --python /app/bin/python install --quiet --no-cache-dir --no-index --no-deps /locked/*.whl

FROM dependencies AS installed
COPY pyproject.toml README.md LICENSE ./
COPY libs/__init__.py libs/
COPY libs/common libs/common
COPY services services
COPY cli cli
RUN PYTHONPATH=/build python3 -m pip wheel --quiet --no-cache-dir --no-index --no-deps --no-build-isolation --wheel-dir /own . \
 && python3 -m pip --python /app/bin/python install --quiet --no-cache-dir --no-index --no-deps /own/*.whl

FROM installed AS installed-testbed
COPY libs/testbed libs/testbed
RUN PYTHONPATH=/build python3 -m pip wheel --quiet --no-cache-dir --no-index --no-deps --no-build-isolation --wheel-dir /own-testbed . \
 && python3 -m pip --python /app/bin/python install --quiet --no-cache-dir --no-index --no-deps --force-reinstall /own-testbed/*.whl

FROM ${BASE} AS runtime
LABEL org.opencontainers.image.title="talos-cloud-controller-manager" \
      org.opencontainers.image.description="Turns a joining Talos machine into a usable Kubernetes node" \
      org.opencontainers.image.licenses="Apache-2.0"
# Bytecode was made with the installation; at run time the root file system is read-only.
ENV PATH=/app/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
COPY --from=installed /app /app
USER 10258:10258
EXPOSE 10458
ENTRYPOINT []
CMD ["python", "-m", "services"]

# Named volumes take the owner of the folder that they are first mounted on.
FROM runtime AS testbed
COPY --from=installed-testbed /app /app
USER 0:0
RUN install -d -o 10258 -g 10258 -m 0700 /cluster /cluster/keys /cluster/nats /cluster/control-plane \
    /cluster/talos /cluster/nodes /cluster/watcher /cluster/metadata /cluster/labeler /cluster/csr /cluster/ipam /cluster/lifecycle
USER 10258:10258

# The last stage is what is built without --target.
FROM runtime
