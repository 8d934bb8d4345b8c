"""What holds of blobs wherever they lie, and of those in a bucket alone."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from planner.api.jobs.blobs import Blobs, digest_bytes
from planner.api.jobs.errors import BlobDamaged, BlobMissing, StoreBusy, StoreUnusable
from planner.api.jobs.lanes import LANES
from planner.api.jobs.opening import open_store
from planner.api.jobs.store import Store
from planner.api.jobs.tasks import Task
from planner.errors import UsageError


@dataclass
class Holder:
    store: Store
    spoil: Callable[[str, bytes | None], None]
    age: Callable[[str], None]

    @property
    def blobs(self) -> Any:
        return self.store.blobs


@pytest.fixture(params=["folder", "bucket"])
def holder(request: pytest.FixtureRequest, tmp_path: Path) -> Holder:
    if request.param == "folder":
        store = Store(tmp_path / "service")

        def spoil(digest: str, content: bytes | None) -> None:
            path = Blobs(store.folder / "blobs").path(digest)
            path.unlink() if content is None else path.write_bytes(content)

        return Holder(store, spoil, lambda digest: os.utime(Blobs(store.folder / "blobs").path(digest), (0, 0)))
    store = open_store(tmp_path / "service", blobs=request.getfixturevalue("bucket_url"))

    def spoil_object(digest: str, content: bytes | None) -> None:
        bucket = store.blobs.bucket  # type: ignore[attr-defined]
        bucket.remove(digest)
        if content is not None:
            bucket._client.put_object(Bucket=bucket.name, Key=bucket.key(digest), Body=content)

    def age(digest: str) -> None:
        with store.database.write() as db:
            db.execute("UPDATE blobs SET touched_at = 0 WHERE digest = ?", (digest,))

    return Holder(store, spoil_object, age)


def test_a_blob_is_whole_or_not_there(holder: Holder) -> None:
    blobs = holder.blobs
    digest = blobs.put(b"content")
    assert blobs.put(b"content") == digest == digest_bytes(b"content")
    assert blobs.read(digest) == b"content"
    assert digest in blobs
    assert list(blobs.digests()) == [digest]
    with pytest.raises(BlobMissing):
        blobs.read(digest_bytes(b"x"))
    for hostile in ("../../etc/passwd", "", digest.upper(), digest + "/x", 7):
        assert hostile not in blobs
        if isinstance(hostile, str):
            with pytest.raises(ValueError, match="hexadecimal"):
                blobs.read(hostile)


def test_a_blob_is_opened_whole_or_not_at_all(holder: Holder) -> None:
    digest = holder.blobs.put(b"content")
    with holder.blobs.open(digest) as file:
        assert file.read() == b"content"
    for content, error in ((b"con", BlobDamaged), (None, BlobMissing)):
        holder.spoil(digest, content)
        with pytest.raises(error):
            holder.blobs.open(digest)
        assert digest not in holder.blobs
        holder.blobs.put(b"content")


def test_a_blob_is_laid_where_a_child_reads_it(holder: Holder, tmp_path: Path) -> None:
    holder.blobs.lay(holder.blobs.put(b"content"), tmp_path / "laid")
    assert (tmp_path / "laid").read_bytes() == b"content"
    with pytest.raises(BlobMissing):
        holder.blobs.lay(digest_bytes(b"x"), tmp_path / "none")


def test_a_blob_that_is_damaged_or_gone_is_said_and_can_be_kept_again(holder: Holder) -> None:
    digest = holder.blobs.put(b"content")
    for content, error in ((b"con", BlobDamaged), (None, BlobMissing)):
        holder.spoil(digest, content)
        with pytest.raises(error):
            holder.blobs.read(digest)
        assert digest not in holder.blobs
        assert holder.blobs.put(b"content") == digest
        assert holder.blobs.read(digest) == b"content"


def test_a_spooled_file_becomes_a_blob_and_goes(holder: Holder) -> None:
    for _ in range(2):  # the second time it is there already
        file = holder.blobs.spool()
        file.write(b"spooled")
        holder.blobs.adopt(file, digest_bytes(b"spooled"))
        assert not Path(file.name).exists()
        assert holder.blobs.read(digest_bytes(b"spooled")) == b"spooled"


def test_what_is_missing_is_said_and_what_is_there_can_be_joined(holder: Holder) -> None:
    digest = holder.blobs.put(b"result")
    assert holder.blobs.put(b"result") == digest
    assert holder.blobs.missing([digest, digest_bytes(b"other")]) == [digest_bytes(b"other")]
    assert digest in holder.blobs
    with holder.store.database.write() as db:
        assert holder.blobs.join(db, digest) == 6
        assert holder.blobs.hold(db, [digest])
        assert not holder.blobs.hold(db, [digest, digest_bytes(b"other")])
        with pytest.raises(BlobMissing):
            holder.blobs.join(db, digest_bytes(b"other"))


def test_purging_takes_what_is_old_and_unnamed_and_nothing_else(holder: Holder) -> None:
    store, blobs = holder.store, holder.blobs
    named, young, old = (blobs.put(c) for c in (b"named", b"young", b"old"))
    store.submit("a", Task("plan", {"model": named}, {}, code="c"), name="m")
    for digest in (named, old):
        holder.age(digest)
    found = [store.purge(3600.0) for _ in range(2)]  # a bucket's blobs are doomed first
    assert old in blobs or sum(p.blobs for p in found) == 1
    if old in blobs:
        _let_doom_pass(store)
        assert store.purge(3600.0).blobs == 1
    assert (named in blobs, young in blobs, old in blobs) == (True, True, False)
    assert blobs.read(named) == b"named"


def _let_doom_pass(store: Store) -> None:
    with store.database.write() as db:
        db.execute("UPDATE blobs SET doomed_at = 0 WHERE doomed_at IS NOT NULL")


# A bucket


@pytest.fixture(params=["sqlite", "postgres"])
def bucketed(request: pytest.FixtureRequest, bucket_url: str, tmp_path: Path) -> Iterator[Store]:
    url = "" if request.param == "sqlite" else request.getfixturevalue("postgres_server").database()
    store = open_store(tmp_path / "service", url, bucket_url)
    yield store
    store.database.close()


def test_a_doomed_blob_that_is_put_or_joined_stays(bucketed: Store) -> None:
    blobs: Any = bucketed.blobs
    digests = [blobs.put(c) for c in (b"put again", b"joined", b"named since", b"unwanted")]
    with bucketed.database.write() as db:
        db.execute("UPDATE blobs SET touched_at = 0, doomed_at = 0")
    blobs.put(b"put again")
    bucketed.submit("a", Task("plan", {"model": digests[1]}, {}, code="c"), name="m")
    held = bucketed.leases.claim("w", LANES)
    assert held is not None
    with bucketed.database.write() as db:  # as by a program that knows nothing of doom
        db.execute(
            "INSERT INTO files (task, way, name, digest, media_type, size) VALUES (?, 'out', 'x', ?, '', 1)",
            (held.task, digests[2]),
        )
    assert blobs.purge(lambda _: False)[0] == 1
    assert [d in blobs for d in digests] == [True, True, True, False]
    assert sorted(blobs.digests()) == sorted(digests[:3])


def test_a_process_that_is_killed_leaves_no_file_of_what_it_was_sent(bucketed: Store) -> None:
    with bucketed.blobs.spool() as file:
        file.write(b"a part of it")
        assert not Path(file.name).exists()


def test_what_one_host_discards_another_may_have_put(bucketed: Store) -> None:
    digest = bucketed.blobs.put(b"model")
    assert bucketed.blobs.put(b"model") == digest  # by a request to another host, which has not named it yet
    bucketed.discard(digest, lambda _: False)
    bucketed.submit("a", Task("plan", {"model": digest}, {}, code="c"), name="m")
    assert bucketed.blobs.read(digest) == b"model"
    unwanted = bucketed.blobs.put(b"unwanted")
    bucketed.discard(unwanted, lambda _: False)
    _let_doom_pass(bucketed)
    assert bucketed.purge(3600.0).blobs == 1
    assert (digest in bucketed.blobs, unwanted in bucketed.blobs) == (True, False)


def test_who_puts_a_blob_while_it_is_removed_puts_it_anew(bucketed: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs: Any = bucketed.blobs
    digest = blobs.put(b"content")
    with bucketed.database.write() as db:
        db.execute("UPDATE blobs SET touched_at = 0, doomed_at = 0")
    removing, putting = threading.Event(), threading.Thread(target=lambda: blobs.put(b"content"))
    remove = type(blobs.bucket).remove

    def slow(bucket: Any, digest: str) -> None:
        removing.set()
        putting.start()
        time.sleep(0.05)  # the other writes to the row by now, and waits
        remove(bucket, digest)

    monkeypatch.setattr(type(blobs.bucket), "remove", slow)
    assert blobs.purge(lambda _: False)[0] == 1
    putting.join()
    assert removing.is_set()
    assert blobs.read(digest) == b"content"
    assert digest in blobs


def test_objects_that_no_row_knows_are_found_and_purged(bucketed: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs: Any = bucketed.blobs
    digest = blobs.bucket.put(b"of a child whose worker was lost")
    assert digest not in blobs
    assert blobs.purge(lambda _: False, young_s=-1.0) == (0, 0)
    assert digest in blobs
    assert blobs.purge(lambda _: False, young_s=-1.0) == (1, 32)
    assert list(blobs.digests()) == []


def test_a_large_object_goes_in_parts_and_is_not_written_twice(
    bucketed: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from planner.api.jobs.s3 import bucket as module

    monkeypatch.setattr(module, "SINGLE", 1 << 20)
    monkeypatch.setattr(module, "PART", 5 << 20)
    blobs: Any = bucketed.blobs
    content = os.urandom(1 << 20) * 11
    digest = blobs.put(content)
    head = blobs.bucket._client.head_object(Bucket=blobs.bucket.name, Key=blobs.bucket.key(digest))
    assert head["ETag"].endswith('-3"')
    assert blobs.read(digest) == content
    assert blobs.bucket.put(content) == digest
    assert blobs.bucket._client.list_multipart_uploads(Bucket=blobs.bucket.name).get("Uploads", []) == []


def test_a_connection_that_breaks_is_taken_up_where_it_broke(bucketed: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from botocore.exceptions import ReadTimeoutError
    from botocore.response import StreamingBody

    from planner.api.jobs.s3 import bucket as module

    monkeypatch.setattr(module, "CHUNK", 1000)
    digest = bucketed.blobs.put(content := os.urandom(10_000))
    chunks, breaks, reads = StreamingBody.iter_chunks, [2, 3], []

    def broken(body: Any, size: int) -> Any:
        reads.append(1)
        for k, chunk in enumerate(chunks(body, size)):
            if breaks and k == breaks[0]:
                breaks.pop(0)
                raise ReadTimeoutError(endpoint_url="http://bucket")
            yield chunk

    monkeypatch.setattr(StreamingBody, "iter_chunks", broken)
    assert bucketed.blobs.read(digest) == content
    assert len(reads) == 3
    breaks[:] = [0] * 10
    with pytest.raises(StoreBusy):
        bucketed.blobs.read(digest)


def test_addresses_and_refusals_name_the_bucket_and_no_secret(
    bucket_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from planner.api.jobs.s3.bucket import Bucket, bucket_of

    assert bucket_of("s3://b/p/q/?endpoint=http://h:1&region=r") == Bucket("b", "p/q/", "http://h:1", "r")
    assert str(bucket_of("s3://b")) == "s3://b"
    for url in ("s3://", "s3://key:s3cret@b/p", "s3://b/p?secret=s3cret", "s3://b/p?x"):
        with pytest.raises(UsageError) as refused:
            bucket_of(url)
        assert "s3cret" not in str(refused.value)
    with pytest.raises(StoreUnusable, match="s3://nobody") as unusable:
        open_store(tmp_path, blobs=bucket_url.replace("bucket-", "nobody-"))
    assert "policy" in str(unusable.value)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(StoreBusy, match="EndpointConnectionError"):
        open_store(tmp_path, blobs="s3://b?endpoint=http://127.0.0.1:9")
