# The operator's image.
#
#   docker build -t elasticjob/operator:0.1.0 .
#
# Behind a proxy or an own package index, pip's settings come in as secrets, which no layer keeps:
#   docker build --secret id=pip,src=$HOME/.config/pip/pip.conf --secret id=ca,src=/etc/ssl/certs/ca-certificates.crt .

# Everything that comes from outside is pinned by its content: the base by digest, packages by the hashes of their files.
ARG BASE=docker.io/library/python:3.11.16-slim-bookworm@sha256:fe556eaffd0d96abd8685b83bb8a69addd0dc730fa193669a7df0d49ddcfac02

FROM ${BASE} AS build
WORKDIR /src
COPY requirements requirements
# What we depend on comes first: this layer stays when only our code changes.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf,required=false \
    --mount=type=secret,id=ca,target=/run/secrets/ca.crt,required=false \
    if [ -s /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi \
 && python3 -m venv /opt/elasticjob \
 && python3 -m venv /opt/build \
 && /opt/elasticjob/bin/pip install --no-cache-dir --require-hashes --only-binary=:all: -r requirements/operator.txt \
 && /opt/build/bin/pip install --no-cache-dir --require-hashes --only-binary=:all: -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
# The wheel is built and installed; only the environment goes on.
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --no-index --wheel-dir /wheels . \
 && /opt/elasticjob/bin/pip install --no-cache-dir --no-deps --no-index /wheels/*.whl \
 && /opt/elasticjob/bin/pip uninstall --yes pip setuptools

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="elasticjob-operator" \
      org.opencontainers.image.description="A Kubernetes operator for PyTorch training that keeps going while pods come and go." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# Some libraries ask for the user's name and home.
RUN useradd --uid 65532 --user-group --no-create-home --home-dir /tmp nonroot
COPY --from=build /opt/elasticjob /opt/elasticjob
ENV PATH=/opt/elasticjob/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# A number, not a name: Kubernetes can then see that it is not root.
USER 65532:65532
WORKDIR /tmp
# 8443: the hub, where agents connect. 8080: /healthz, /readyz, /metrics.
EXPOSE 8443 8080
ENTRYPOINT ["elasticjob-operator"]
CMD ["run"]
