# The service.  Wheels are built in a first stage, so that the final image holds no build tools.
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY planner planner
COPY cost_models cost_models
COPY api api
# The page offers some of them: links in api/static/samples.
COPY sample_graphs sample_graphs
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /wheels .

FROM python:3.12-slim
RUN useradd --create-home --uid 10001 planner && install -d -o planner -m 0700 /data
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(ls /wheels/*.whl)[server]" && rm -rf /wheels
USER planner
WORKDIR /home/planner
# Settings are variables (docs/service.md).  Beyond loopback the service needs a key, or it ends and says so:
#   docker run --rm -v planner:/data IMAGE keys create --tenant team
#   docker run -v planner:/data -p 8080:8080 IMAGE
ENV PLANNER_DATA=/data PLANNER_HOST=0.0.0.0 PLANNER_PORT=8080
VOLUME /data
EXPOSE 8080
HEALTHCHECK CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{os.environ[\"PLANNER_PORT\"]}/healthz', timeout=3)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["planner"]
CMD ["serve"]
