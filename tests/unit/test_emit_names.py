"""Names of the network's parameters: by name, by prefix, by shape and order, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.emit.names import Name, read_names
from planner.errors import InputError

SHAPES = {"h.0.fc.w": (8, 32), "h.0.fc.b": (32,), "h.1.fc.w": (8, 32), "h.1.fc.b": (32,), "wte": (100, 8)}


def rules(tmp_path: Path, document: Any) -> Any:
    path = tmp_path / "names.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return read_names(path)


def test_names_stay_where_nothing_is_said(tmp_path: Path) -> None:
    assert rules(tmp_path, {}).apply(SHAPES) == {n: Name(n) for n in SHAPES}


def test_the_longest_prefix_wins_and_names_win_over_prefixes(tmp_path: Path) -> None:
    found = rules(
        tmp_path,
        {"prefixes": {"h.": "blocks.", "h.1.": "last."}, "parameters": {"wte": {"name": "table", "transposed": True}}},
    ).apply(SHAPES)
    assert [v.name for v in found.values()] == ["blocks.0.fc.w", "blocks.0.fc.b", "last.fc.w", "last.fc.b", "table"]
    assert found["wte"].transposed


def test_the_rest_is_matched_by_shape_and_order(tmp_path: Path) -> None:
    network = [
        {"name": "emb", "shape": [100, 8]},
        {"name": "b0", "shape": [32]},
        {"name": "w0", "shape": [32, 8]},
        {"name": "w1", "shape": [32, 8]},
        {"name": "b1", "shape": [32]},
        {"name": "head", "shape": [7]},
    ]
    found = rules(tmp_path, network).apply(SHAPES)
    assert found == {
        "h.0.fc.w": Name("w0", True), "h.0.fc.b": Name("b0"), "h.1.fc.w": Name("w1", True), "h.1.fc.b": Name("b1"),
        "wte": Name("emb"),
    }  # fmt: skip


def test_a_prefix_finds_out_that_a_matrix_is_transposed(tmp_path: Path) -> None:
    network = [{"name": f"net.{n}", "shape": list(s[::-1])} for n, s in SHAPES.items()]
    found = rules(tmp_path, {"prefixes": {"": "net."}, "network": network}).apply(SHAPES)
    assert found["wte"] == Name("net.wte", True)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "is not JSON"),
        ({"names": {}}, "expected an object with parameters, prefixes or network"),
        ({"parameters": {"x": "y"}}, "'x' is no parameter of the plan"),
        ({"parameters": {"wte": 3}}, "expected a name"),
        ({"parameters": {"wte": ""}}, "expected a name"),
        ({"parameters": {"wte": "\ud800"}}, "expected a name"),
        ({"parameters": {"wte": "a\nb"}}, "expected a name"),
        ({"parameters": {"wte": {"name": "a", "transposed": "false"}}}, "expected a name"),
        ({"prefixes": {"h.0.": "", "h.1.": ""}}, "both become 'fc.w'"),
        ({"prefixes": ["a"]}, "prefixes: expected an object of texts"),
        ([{"name": "a"}], "expected objects with a name and a shape"),
        ([{"name": "a", "shape": [1]}, {"name": "a", "shape": [2]}], "listed twice"),
        ([{"name": "a", "shape": [100, 8]}], "no parameter of shape"),
        ({"parameters": {"wte": "t"}, "network": [{"name": "t", "shape": [8, 100]}]}, "has shape"),
        ({"parameters": {"h.0.fc.b": {"name": "b", "transposed": True}}}, r"has shape \[32\]; expected a matrix"),
        ({"parameters": {"wte": "t"}, "network": [{"name": "u", "shape": [8, 100]}]}, "not in the network's list"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, document: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        rules(tmp_path, document).apply(SHAPES)


def test_what_is_no_matrix_is_not_turned_by_its_prefix(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has shape \[2, 3, 4\], and 'net.w' of the network \[4, 3, 2\]"):
        rules(tmp_path, {"prefixes": {"": "net."}, "network": [{"name": "net.w", "shape": [4, 3, 2]}]}).apply(
            {"w": (2, 3, 4)}
        )


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_names(tmp_path / "none.json")
