"""Objects of a bucket, named by the SHA-256 of their content.

An object is written if there is none (`If-None-Match: *`), whole or not at all, in parts where it is large.  Reading
goes on with the rest where a connection breaks, and checks the digest.  Credentials are those that the AWS SDK finds.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import IO, Any, Final
from urllib.parse import parse_qs, urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from planner.api.jobs.blobs import digest_bytes, is_digest
from planner.api.jobs.errors import BlobDamaged, BlobMissing, StoreBusy
from planner.api.jobs.s3.faults import code_of, store_error
from planner.errors import UsageError

__all__ = ["PART", "Bucket", "bucket_of"]

PART: Final = 16 << 20  # bytes of a part
SINGLE: Final = 64 << 20  # bytes up to which an object is sent in one
CHUNK: Final = 1 << 20
READS: Final = 4  # tries to read on
WRITES: Final = 4  # tries to write while others write the same object


@dataclass(frozen=True, slots=True)
class Bucket:
    """May be handed to another process, which has a client of its own."""

    name: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None

    def __str__(self) -> str:
        return f"s3://{self.name}/{self.prefix}".rstrip("/")

    def key(self, digest: str) -> str:
        """ValueError for what is no digest, so that no name from outside becomes a key."""
        if not is_digest(digest):
            raise ValueError(f"expected 64 hexadecimal digits, found {digest[:80]!r}")
        return f"{self.prefix}{digest[:2]}/{digest}"

    def put(self, content: bytes) -> str:
        """Keeps the content where it is not there yet; its digest.  StoreFull, StoreBusy, StoreUnusable."""
        digest = digest_bytes(content)
        self.put_file(io.BytesIO(content), len(content), digest)
        return digest

    def put_file(self, file: IO[bytes], size: int, digest: str) -> None:
        """As `put`, from the beginning of a file."""
        key = self.key(digest)
        for more in reversed(range(WRITES)):
            file.seek(0)
            try:
                if size <= SINGLE:
                    self._client.put_object(
                        Bucket=self.name,
                        Key=key,
                        Body=file,
                        ContentLength=size,
                        IfNoneMatch="*",
                        ChecksumSHA256=base64.b64encode(bytes.fromhex(digest)).decode(),  # the server compares
                    )
                else:
                    self._put_parts(file, key)
                return
            except (BotoCoreError, ClientError) as e:
                if code_of(e) in ("PreconditionFailed", "412"):
                    return  # it is there
                if not (more and code_of(e) in ("ConditionalRequestConflict", "409")):
                    raise store_error(str(self), e) from e

    def read(self, digest: str) -> bytes:
        """BlobMissing, BlobDamaged, StoreBusy, StoreUnusable."""
        content = io.BytesIO()
        self.copy(digest, content)
        return content.getvalue()

    def copy(self, digest: str, to: IO[bytes]) -> None:
        """As `read`, into a file, piece by piece; what is there when it fails is of no use.  OSError of the file."""
        found = hashlib.sha256()
        for chunk in self.content(digest):
            to.write(chunk)
            found.update(chunk)
        if found.hexdigest() != digest:
            self.remove(digest)  # so that the same content can be kept again
            raise BlobDamaged(f"blob {digest}: its object has other content, and was removed")

    def size(self, digest: str) -> int | None:
        """None where there is no such object."""
        try:
            return int(self._client.head_object(Bucket=self.name, Key=self.key(digest))["ContentLength"])
        except ClientError as e:
            if code_of(e) in ("404", "NoSuchKey", "NotFound"):
                return None
            raise store_error(str(self), e) from e
        except BotoCoreError as e:
            raise store_error(str(self), e) from e

    def remove(self, digest: str) -> None:
        """Also where it is not there."""
        with self._typed():
            self._client.delete_object(Bucket=self.name, Key=self.key(digest))

    def objects(self) -> Iterator[tuple[str, int, float]]:
        """Digest, size and the moment of writing of all objects."""
        with self._typed():
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=self.prefix)
            for page in pages:
                for found in page.get("Contents", ()):
                    name = found["Key"].rpartition("/")[2]
                    if is_digest(name) and found["Key"] == self.key(name):
                        yield name, int(found["Size"]), found["LastModified"].timestamp()

    def check(self) -> None:
        """StoreUnusable, StoreBusy where it cannot be used."""
        with self._typed():
            self._client.head_bucket(Bucket=self.name)

    def content(self, digest: str) -> Iterator[bytes]:
        """In pieces, as it is; taken up where a connection broke.  BlobMissing, StoreBusy, StoreUnusable."""
        taken, version = 0, None
        for more in reversed(range(READS)):
            try:
                resumed: dict[str, str] = {} if version is None else {"Range": f"bytes={taken}-", "IfMatch": version}
                answer = self._client.get_object(Bucket=self.name, Key=self.key(digest), **resumed)
                version = answer["ETag"]
                for chunk in answer["Body"].iter_chunks(CHUNK):
                    taken += len(chunk)
                    yield chunk
                return
            except ClientError as e:
                if code_of(e) in ("NoSuchKey", "404"):
                    raise BlobMissing(f"blob {digest}: there is none; it was removed, or never kept") from None
                raise store_error(str(self), e) from e
            except BotoCoreError as e:
                if not more:
                    raise store_error(str(self), e) from e
        raise StoreBusy(f"{self}: blob {digest} could not be read to its end; try again")

    def _put_parts(self, file: IO[bytes], key: str) -> None:
        upload = self._client.create_multipart_upload(Bucket=self.name, Key=key)["UploadId"]
        place = {"Bucket": self.name, "Key": key, "UploadId": upload}
        try:
            parts: list[dict[str, Any]] = []
            while content := file.read(PART):
                number = len(parts) + 1
                answer = self._client.upload_part(**place, PartNumber=number, Body=content)
                parts.append({"PartNumber": number, "ETag": answer["ETag"]})
            self._client.complete_multipart_upload(**place, MultipartUpload={"Parts": parts}, IfNoneMatch="*")
        except BaseException:
            with contextlib.suppress(BotoCoreError, ClientError):
                self._client.abort_multipart_upload(**place)
            raise

    @contextlib.contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except (BotoCoreError, ClientError) as e:
            raise store_error(str(self), e) from e

    @property
    def _client(self) -> Any:
        return _client(os.getpid(), self.endpoint, self.region)


@cache
def _client(process: int, endpoint: str | None, region: str | None) -> Any:
    """One for each process: connections are not shared with children."""
    config = Config(
        connect_timeout=5,
        read_timeout=30,
        max_pool_connections=20,
        retries={"mode": "standard", "max_attempts": 4},
        request_checksum_calculation="when_required",  # which servers other than Amazon's do not all understand;
        response_checksum_validation="when_required",  # digests are compared all the same
    )
    return boto3.session.Session().client("s3", endpoint_url=endpoint, region_name=region, config=config)


def bucket_of(url: str) -> Bucket:
    """`s3://BUCKET/PREFIX?endpoint=URL&region=NAME`.  UsageError."""
    parts = urlsplit(url)
    query = parse_qs(parts.query, strict_parsing=bool(parts.query)) if "=" in parts.query or not parts.query else None
    unknown = None if query is None else set(query) - {"endpoint", "region"}
    if parts.scheme != "s3" or not parts.hostname or parts.username or query is None or unknown:
        raise UsageError("--blobs: expected s3://BUCKET/PREFIX?endpoint=URL&region=NAME, without credentials")
    prefix = parts.path.strip("/")
    return Bucket(
        parts.netloc,
        f"{prefix}/" if prefix else "",
        query.get("endpoint", [None])[0],
        query.get("region", [None])[0],
    )
