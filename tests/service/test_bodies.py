"""Large answers: from files, in pieces, whole, and compressed once for all."""

from __future__ import annotations

import asyncio
import errno
import gzip
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from planner.api import bodies, respond
from planner.api.bodies import Content, Filed, Held, filed, packed, pieces, whole
from planner.api.respond import Packed
from tests.service.http import Service

LARGE = b'{"large": "' + os.urandom(2**20).hex().encode() + b'"}'


def test_a_large_plan_comes_whole_as_it_is_and_compressed(service: Service) -> None:
    at = f"/v1/plans/{service.planned(LARGE)}"
    for coding in ("identity", "gzip", "gzip"):
        with service.client.stream("GET", at, headers={"accept-encoding": coding}) as answer:
            assert answer.status_code == 200
            sent = b"".join(answer.iter_raw())
            assert answer.headers["content-length"] == str(len(sent))
        assert (gzip.decompress(sent) if coding == "gzip" else sent) == LARGE
    head = service.client.head(at, headers={"accept-encoding": "identity"})
    assert (head.headers["content-length"], head.content) == (str(len(LARGE)), b"")


def test_a_large_blob_that_is_damaged_is_made_again_before_it_is_sent(service: Service) -> None:
    at = f"/v1/plans/{service.planned(LARGE)}"
    blob = max(service.store.blobs.digests(), key=lambda d: service.store.blobs.path(d).stat().st_size)
    path = service.store.blobs.path(blob)
    path.write_bytes(LARGE.replace(b"large", b"Large"))
    working = service.working({"plan.json": LARGE})
    assert service.client.get(at, headers={"accept-encoding": "identity"}).content == LARGE
    working.join()
    assert path.read_bytes() == LARGE


def test_without_room_for_the_compressed_form_the_plain_one_is_sent(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Content:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(respond, "packed", full)
    answer = service.client.get(f"/v1/plans/{service.planned(LARGE)}", headers={"accept-encoding": "gzip"})
    assert answer.content == LARGE
    assert "content-encoding" not in answer.headers
    assert not answer.headers["etag"].endswith('.gzip"')


def test_a_file_is_read_piece_by_piece_and_lives_as_long_as_its_readers(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(LARGE)
    with path.open("rb") as file:
        content = Filed(file)
    path.unlink()

    async def read(content: Content) -> int:
        return sum([len(piece) async for piece in pieces(content)])

    tracemalloc.start()
    try:
        assert asyncio.run(read(content)) == len(LARGE)
        assert tracemalloc.get_traced_memory()[1] < len(LARGE) / 4
    finally:
        tracemalloc.stop()
    assert whole(content) == LARGE
    handles = len(os.listdir("/proc/self/fd"))
    del content
    assert len(os.listdir("/proc/self/fd")) == handles - 1


def test_both_sizes_of_compressed_bodies_unpack_and_leave_nothing_in_the_folder(tmp_path: Path) -> None:
    for content, kind in ((b"small" * 100, Held), (LARGE, Filed)):
        made = packed(Held(content), tmp_path)
        assert type(made) is kind
        assert gzip.decompress(whole(made)) == content
    assert whole(filed(LARGE, tmp_path)) == whole(filed(LARGE, tmp_path / "nothing")) == LARGE
    assert not list(tmp_path.iterdir())


def test_many_who_ask_at_once_have_it_compressed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = 0

    async def load() -> Content:
        nonlocal loads
        loads += 1
        await asyncio.sleep(0)
        return Held(LARGE)

    async def scenario() -> None:
        packs = Packed(tmp_path)
        found = await asyncio.gather(*(packs.of("a", load) for _ in range(20)))
        assert len(set(map(id, found))) == loads == 1
        monkeypatch.setattr(respond, "_KEPT_BYTES", {Held: 100, Filed: found[0].size + 1})
        await packs.of("b", load)  # there is room for one
        await packs.of("b", load)
        assert loads == 2
        await packs.of("a", load)
        assert loads == 3
        assert gzip.decompress(whole(found[0])) == LARGE  # whoever has it still reads it

    asyncio.run(scenario())


def test_a_folder_that_nobody_has_made_yet_is_made_for_compressed_bodies(tmp_path: Path) -> None:
    """As of a replica whose store lies elsewhere."""

    async def load() -> Content:
        return Held(LARGE)

    found = asyncio.run(Packed(tmp_path / "not" / "made").of("digest", load))
    assert gzip.decompress(whole(found)) == LARGE


def test_a_page_of_a_large_list_comes_whole(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(respond, "IN_MEMORY", 100)
    service.post()
    plain = service.client.get("/v1/jobs", headers={"accept-encoding": "identity"})
    assert plain.json() == service.client.get("/v1/jobs").json()
    assert plain.headers["content-length"] == str(len(plain.content))
    assert bodies.IN_MEMORY > 100


def test_compressed_forms_take_so_many_descriptors_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(respond, "_KEPT", {Held: 5, Filed: 2})
    monkeypatch.setattr(bodies, "IN_MEMORY", 100)

    async def scenario() -> None:
        packs, before = Packed(tmp_path), len(os.listdir("/proc/self/fd"))
        for k in range(20):

            async def load(k: int = k) -> Content:
                return Held(bytes([k]) * (50 if k % 2 else 200))

            await packs.of(str(k), load)
        assert len(os.listdir("/proc/self/fd")) == before + 2
        assert list(packs._by_digest) == [str(k) for k in (11, 13, 15, 16, 17, 18, 19)]

    asyncio.run(scenario())
