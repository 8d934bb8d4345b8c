# The service.  Wheels are built in a first stage, so that the final image holds no build tools.
# An exact version; docs/deploy.md says how to pin its digest as well.
ARG PYTHON=python:3.12.12-slim-bookworm
FROM ${PYTHON} AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY docs/deploy/build.lock docs/deploy/
RUN pip install --no-cache-dir --require-hashes -r docs/deploy/build.lock
COPY pyproject.toml README.md LICENSE ./
COPY planner planner
COPY cost_models cost_models
COPY api api
# The page offers some of them: links in api/static/samples.
COPY sample_graphs sample_graphs
RUN python -m hatchling build -t wheel -d /wheels

FROM ${PYTHON}
RUN useradd --create-home --uid 10001 planner && install -d -o planner -m 0700 /data
COPY docs/deploy/requirements.lock /tmp/
RUN pip install --no-cache-dir --require-hashes -r /tmp/requirements.lock && rm /tmp/requirements.lock
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-deps /wheels/*.whl && pip check && rm -rf /wheels
# A number, so that Kubernetes can see that it is not root.
USER 10001
WORKDIR /home/planner
# Settings are variables (docs/service.md).  Beyond loopback the service needs a key, or it ends and says so:
#   docker run --rm -v planner:/data IMAGE keys create --tenant team
#   docker run --read-only --tmpfs /tmp -v planner:/data -p 8080:8080 IMAGE
# Only /data and /tmp are written to.
ENV PLANNER_DATA=/data PLANNER_HOST=0.0.0.0 PLANNER_PORT=8080 XDG_CACHE_HOME=/tmp/cache
VOLUME /data
EXPOSE 8080
HEALTHCHECK --start-period=30s --interval=10s --timeout=5s CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{os.environ[\"PLANNER_PORT\"]}/healthz', timeout=3)"]
STOPSIGNAL SIGTERM
# No init beside it: as the first process, `planner serve` and `planner worker` bury orphans themselves and end in order.
ENTRYPOINT ["planner"]
CMD ["serve"]
