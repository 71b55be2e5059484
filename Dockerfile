# seglogd in a container.
#
#     docker build -t seglog .
#     docker run -d -p 127.0.0.1:9192:9192 -v seglog-data:/var/lib/seglog seglog

FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY protocol protocol
COPY broker broker
COPY clients clients
# The versions that are tested, the build backend included.
RUN PIP_CONSTRAINT=constraints.txt pip wheel --no-cache-dir --wheel-dir /wheels . \
 && python -m venv /opt/seglog \
 && /opt/seglog/bin/pip install --no-cache-dir --no-index --find-links /wheels seglog

FROM python:3.12-slim
COPY --from=build /opt/seglog /opt/seglog
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin seglog \
 && install -d -o seglog -g seglog /var/lib/seglog
USER seglog
# 0.0.0.0 is every interface of the container: with 127.0.0.1 a published port would lead nowhere. There is no
# authentication, so whoever reaches the port reads and writes everything: publish it to 127.0.0.1 or to a trusted network.
# The data lies one level below the volume, because a fresh volume may hold a `lost+found`, which a log directory must not.
ENV PATH=/opt/seglog/bin:$PATH \
    SEGLOG_LISTEN=0.0.0.0:9192 \
    SEGLOG_LOG_DIR=/var/lib/seglog/data \
    SEGLOG_LOG_FORMAT=json
VOLUME /var/lib/seglog
EXPOSE 9192
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s CMD ["seglog", "ping"]
# SIGTERM, docker's own choice, stops it in good order; give it more than ten seconds where disks are slow.
ENTRYPOINT ["seglogd"]
