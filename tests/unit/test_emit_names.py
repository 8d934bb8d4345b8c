"""Names of the network's parameters: by name, by prefix, by shape and order, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.emit.names import Name, Place, exported_name, read_names
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


def test_a_list_is_matched_by_name_whatever_its_order(tmp_path: Path) -> None:
    """Of equal shapes the order would give the wrong ones."""
    network = [{"name": n, "shape": list(s[::-1])} for n, s in reversed(SHAPES.items())]
    assert rules(tmp_path, network).apply(SHAPES) == {n: Name(n, len(s) == 2) for n, s in SHAPES.items()}


def test_a_list_with_another_beginning_is_matched_where_one_change_fits_all(tmp_path: Path) -> None:
    shapes = {f"model.{n}": s for n, s in SHAPES.items()}
    network = [{"name": f"net.{n}", "shape": list(s)} for n, s in reversed(SHAPES.items())]
    found = rules(tmp_path, network).apply(shapes)
    assert found == {n: Name(n.replace("model.", "net.")) for n in shapes}


EXPORTED = {"val_2": (8, 32), "val_7": (8, 32), "val_9": (8, 8), "layers.0.fc.bias": (32,), "onnx::MatMul_12": (5, 9)}
PLACES = {
    "val_2": Place("model.layers.1.fc", True),
    "val_7": Place("model.layers.0.fc", True),
    "val_9": Place("model.layers.0.out", True),
}
MODULE = [
    {"name": "layers.0.fc.weight", "shape": [32, 8]}, {"name": "layers.0.fc.bias", "shape": [32]},
    {"name": "layers.1.fc.weight", "shape": [32, 8]}, {"name": "layers.0.out.weight", "shape": [8, 8]},
    {"name": "layers.1.out.weight", "shape": [8, 8]}, {"name": "head", "shape": [9, 5]},
]  # fmt: skip


def test_what_the_exporter_renamed_is_found_by_the_module_that_reads_it(tmp_path: Path) -> None:
    """A square matrix, too: it was renamed because it was turned.  `head` has a shape that no other has."""
    assert rules(tmp_path, MODULE).apply(EXPORTED, PLACES) == {
        "val_2": Name("layers.1.fc.weight", True), "val_7": Name("layers.0.fc.weight", True),
        "val_9": Name("layers.0.out.weight", True), "layers.0.fc.bias": Name("layers.0.fc.bias"),
        "onnx::MatMul_12": Name("head", True),
    }  # fmt: skip


def test_what_could_be_several_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'val_2' could be any of layers.0.fc.weight, layers.1.fc.weight"):
        rules(tmp_path, MODULE).apply(EXPORTED)
    with pytest.raises(InputError, match=r"'val_9', read in module layers.0, could be any of layers.0.out.weight, "):
        rules(tmp_path, MODULE).apply(EXPORTED, PLACES | {"val_9": Place("layers.0", True)})
    with pytest.raises(InputError, match="does not show whether the network holds it transposed"):
        rules(tmp_path, MODULE).apply(EXPORTED, PLACES | {"val_9": Place("layers.0.out")})


def test_a_square_matrix_beside_turned_ones_has_to_be_named(tmp_path: Path) -> None:
    shapes = {"a.weight": (4, 8), "b.weight": (8, 8)}
    network = [{"name": "a.weight", "shape": [8, 4]}, {"name": "b.weight", "shape": [8, 8]}]
    with pytest.raises(InputError, match=r"'b.weight' of shape .* does not show whether it is"):
        rules(tmp_path, network).apply(shapes)
    told = {"parameters": {"b.weight": {"name": "b.weight", "transposed": True}}, "network": network}
    assert all(name.transposed for name in rules(tmp_path, told).apply(shapes).values())
    straight = [{"name": n, "shape": list(s)} for n, s in shapes.items()]
    assert not any(name.transposed for name in rules(tmp_path, straight).apply(shapes).values())


@pytest.mark.parametrize(
    "name", ["val_7", "onnx::MatMul_55", "t", "t_1", "transpose_2", "/fc/Transpose_output_0", "134"]
)
def test_a_name_that_the_exporter_made_up_is_refused(tmp_path: Path, name: str) -> None:
    shapes, places = {"fc.bias": (4,), name: (8, 4)}, {name: Place("fc", True)}
    for told in ({}, {"prefixes": {"": "net."}}):
        found = rules(tmp_path, told)
        with pytest.raises(InputError, match="is named by the exporter, and is read in module fc"):
            found.check(found.apply(shapes, places), places)
    for told in ({"parameters": {name: "fc.weight"}}, [{"name": n, "shape": [4]} for n in ("fc.bias",)] + [
        {"name": "fc.weight", "shape": [4, 8]}
    ]):  # fmt: skip
        found = rules(tmp_path, told)
        names = found.apply(shapes, places)
        found.check(names, places)
        assert names[name].name == "fc.weight"


@pytest.mark.parametrize("name", ["pos", "weight", "layers.0.t", "transformer.wte.weight", "w0", "v_proj"])
def test_names_that_a_module_may_have_are_taken(name: str) -> None:
    assert not exported_name(name)


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
