# The service.  Wheels are built in a first stage, so that the final image holds no build tools.
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY planner planner
COPY cost_models cost_models
COPY api api
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /wheels .

FROM python:3.12-slim
RUN useradd --create-home --uid 10001 planner
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(ls /wheels/*.whl)[service]" && rm -rf /wheels
USER planner
WORKDIR /home/planner
EXPOSE 8080
HEALTHCHECK CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=3)"]
ENTRYPOINT ["planner"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8080"]
