# seglogd in a container, with `seglog`, `seglog load` and `seglog console` beside it.
#
#     docker build --build-arg SEGLOG_COMMIT="$(git rev-parse HEAD)" -t seglog .
#     docker run -d -p 127.0.0.1:9192:9192 -p 127.0.0.1:9092:9092 -e SEGLOG_OPEN_TO_EVERYONE=true \
#       -v seglog-data:/var/lib/seglog --stop-timeout 300 seglog
#
# What runs in it is the compiled build. Where that cannot be built, the build of the image fails and says why; the one from
# the sources is made with `--build-arg SEGLOG_BUILD=sources`. The first line of the log says which it is.
# The commit is part of the version that the image tells; without the argument the version names none.
#
# The base is python:3.12-slim (3.12.14 on Debian trixie, built with profile-guided optimization), by the digest of its
# index for all architectures: what is built tomorrow stands on the same. A newer one is told by `docker buildx imagetools
# inspect python:3.12-slim`.

FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea AS build
ARG SEGLOG_BUILD=compiled
# The compiler stays in this stage, and a version of it would leave Debian's mirrors with the next update.
# hadolint ignore=DL3008
RUN case "$SEGLOG_BUILD" in \
      compiled) apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev \
        && rm -rf /var/lib/apt/lists/* ;; \
      sources) ;; \
      *) echo "SEGLOG_BUILD is compiled or sources, not '$SEGLOG_BUILD'" >&2; exit 2 ;; \
    esac
WORKDIR /src
COPY pyproject.toml hatch_build.py constraints.txt README.md LICENSE NOTICE ./
COPY protocol protocol
COPY broker broker
COPY clients clients
ARG SEGLOG_COMMIT=
# The versions that are tested, the build backend and mypyc included: constraints.txt pins them, the second variable for
# newer versions of pip. What runs has no pip.
# hadolint ignore=DL3013
RUN if [ "$SEGLOG_BUILD" = compiled ]; then export HATCH_BUILD_HOOKS_ENABLE=true; fi \
 && export PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt SEGLOG_COMMIT="$SEGLOG_COMMIT" \
 && pip wheel --no-cache-dir --wheel-dir /wheels '.[broker,console,load]' \
 && python -m venv --without-pip /opt/seglog \
 && pip --python /opt/seglog/bin/python install --no-cache-dir --no-index --find-links /wheels 'seglog[broker,console,load]'

FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea
COPY --from=build /opt/seglog /opt/seglog
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin seglog \
 && install -d -m 0770 -o 10001 -g 0 /var/lib/seglog
# As a number: Kubernetes cannot see that a name is not root.
USER 10001
# 0.0.0.0 is every interface of the container: with 127.0.0.1 a published port would lead nowhere. It does not start so
# without accounts, unless SEGLOG_OPEN_TO_EVERYONE=true says that whoever reaches the port may read and write everything:
# then publish it to 127.0.0.1, or to a network that lets in nobody else (docs/CONTAINERS.md).
# Kafka's clients connect again to the advertised address. localhost is right where the port is published to it; where
# clients come from elsewhere, or from other containers, name the address that they use (docs/CONTAINERS.md).
# The data lies one level below the volume, because a fresh volume may hold a `lost+found`, which a log directory must not.
ENV PATH=/opt/seglog/bin:$PATH \
    SEGLOG_LISTEN=0.0.0.0:9192 \
    SEGLOG_LISTENERS=PLAINTEXT://0.0.0.0:9092 \
    SEGLOG_ADVERTISED_LISTENERS=PLAINTEXT://localhost:9092 \
    SEGLOG_HTTP_LISTEN=0.0.0.0:9193 \
    SEGLOG_LOG_DIR=/var/lib/seglog/data \
    SEGLOG_LOG_FORMAT=json
VOLUME /var/lib/seglog
EXPOSE 9092 9192 9193
# Healthy is a broker that serves its partitions, which it says over HTTP, to anybody. Unhealthy from its start on until all
# are recovered. Problems that no start mends, such as a full disk or damage, are no part of it: /healthz and `seglog ping`
# tell those. Where SEGLOG_HTTP_LISTEN is none, or speaks TLS, give the container a check of its own (--health-cmd).
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s CMD ["python", "-c", "import http.client as h, sys; \
  c = h.HTTPConnection('127.0.0.1', 9193, timeout=9); c.request('GET', '/readyz'); sys.exit(c.getresponse().status != 200)"]
# SIGTERM, docker's own choice, stops it in good order; give it more than ten seconds where disks are slow.
ENTRYPOINT ["seglogd"]
