"""Graphs of several batches of one request: what was imported for a larger batch is not imported again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.errors import InputError
from planner.frontends import load_with_file
from planner.requests.cancel import Cancellation
from planner.requests.model import ModelSource
from planner.requests.prepared import Prepared
from planner.requests.search import SearchRequest
from planner.requests.watch import Silent
from tests.unit.frontends_models import INT64, constant, node, serialised, value

SAMPLES = Path(__file__).parents[2] / "sample_graphs"


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The batches that are imported."""
    found: list[int | None] = []
    original = ModelSource.load_with_file

    def counted(self: ModelSource, **options: Any) -> Any:
        found.append(options["batch"])
        return original(self, **options)

    monkeypatch.setattr(ModelSource, "load_with_file", counted)
    return found


def prepared(model: Path) -> Prepared:
    return Prepared(SearchRequest(model=model, devices="2"), Cancellation(), Silent())


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.onnx")), ids=lambda path: path.stem)
def test_a_smaller_batch_is_what_its_own_import_gives(path: Path, imports: list[int | None]) -> None:
    request = prepared(path)
    request.load(48)
    for batch in (6, 16, 1):
        own = load_with_file(path, batch=batch)
        graph = request.load(batch)
        assert graph.digest == own.graph.digest
        assert graph.tensors.keys() == own.graph.tensors.keys()
        assert {n: (t.shape, t.parts) for n, t in graph.tensors.items()} == {
            n: (t.shape, t.parts) for n, t in own.graph.tensors.items()
        }
        assert request.file == own.file
    assert imports == [48, None], "`file` reads the model as the options have it"


def test_a_larger_batch_is_imported_under_the_limits_of_an_import(imports: list[int | None]) -> None:
    request = prepared(SAMPLES / "gpt_tiny.onnx")
    assert [request.load(n).tensors["input_ids"].shape[:1] for n in (4, 16, 8)] == [(4,), (16,), (8,)]
    assert imports == [4, 16]


def test_a_batch_that_was_a_symbol_is_imported_for_each(tmp_path: Path, imports: list[int | None]) -> None:
    model = tmp_path / "symbol.onnx"
    nodes = [node("Relu", "x", "y")]
    model.write_bytes(serialised(nodes, [value("x", ["n", 3])], [value("y", ["n", 3])]))
    request = prepared(model)
    assert [request.load(n).tensors["y"].shape for n in (8, 2)] == [(8, 3), (2, 3)]
    assert imports == [8, 2]


def test_what_stops_a_batch_is_said_by_the_import(tmp_path: Path, imports: list[int | None]) -> None:
    """Three samples of two numbers are no whole number of rows of four."""
    model = tmp_path / "table.onnx"
    nodes = [node("Reshape", "ids flat", "a"), node("Reshape", "a whole", "y")]
    constants = [constant("flat", [8]), constant("whole", [2, 4])]
    model.write_bytes(serialised(nodes, [value("ids", [4, 2], INT64)], [value("y", [2, 4], INT64)], constants))
    request = prepared(model)
    request.load(8)
    with pytest.raises(InputError):
        request.load(3)
    assert imports == [8, 3]
