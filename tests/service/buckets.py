"""A server that speaks S3, of the tests' own, and buckets in it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import count

import pytest

__all__ = ["bucket_url", "s3_server"]

_names = count()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Its address."""
    server = pytest.importorskip("moto.server", reason="moto[s3,server] is not installed")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def bucket_url(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """As `--blobs` takes it; credentials are in the environment."""
    import boto3

    for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    name = f"bucket-{next(_names)}"
    boto3.session.Session().client("s3", endpoint_url=s3_server).create_bucket(Bucket=name)
    return f"s3://{name}/some/prefix?endpoint={s3_server}"
