"""What goes along with tensors: settings in PyTorch's files, nested as they were, and files beside."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.checkpoint.source import open_checkpoint
from planner.checkpoint.transforming import Options, planned, transform
from planner.stored.formats.dcp import read_dcp
from planner.stored.formats.layout import Entry
from planner.stored.formats.nested import Index, is_plain, leaves, name_of, nested
from planner.stored.formats.pickled import Call, Name
from planner.stored.formats.registry import read_file
from planner.stored.formats.torch_file import TorchFile, read_saved, saved
from tests.checkpoint.layouts import random_layouts, random_tensors, write_arranged, write_file, write_ranks
from tests.checkpoint.test_renaming import rules_of
from tests.checkpoint.test_transforming import arrays_of, moved

SETTINGS: dict[str, Any] = {
    "epoch": 3, "loss_scale": 65536.0, "name": "run", "none": None, "empty": {},
    "optimizer": {"param_groups": [{"lr": 0.1, "betas": (0.9, 0.95), "params": ["w", "b"]}, {"lr": 0.2, "params": []}]},
    "scheduler": {"last_epoch": 7, "base": [1, 2.5]}, "size": Call(Name("torch", "Size"), ((2, 3),)),
    "kind": Name("torch", "bfloat16"),
}  # fmt: skip


def torch_file(path: Path, settings: dict[str, Any]) -> Path:
    """A file of torch.save: {"model": {"w", "b"}, "optimizer": {"state": {0: {...}}}} and settings."""
    w, b, m = Entry("w", np.dtype("f4"), (2, 3)), Entry("b", np.dtype("f4"), (3,)), Entry("m", np.dtype("f4"), (2, 3))
    value = {**settings, "model": {"w": w, "b": b}, "ema": [{"w": m}]}
    made = saved([w, b, m], value)
    with path.open("wb") as opened:
        opened.truncate(made.size)
        for offset, data in made.fixed:
            opened.seek(offset)
            opened.write(data)
        for i, array in enumerate((np.arange(6.0), np.arange(3.0), np.arange(6.0) + 1)):
            opened.seek(made.begins[f"archive/data/{i}"])
            opened.write(array.astype("f4").tobytes())
    return path


def shown(value: Any) -> Any:
    """With shapes in place of tensors, calls as text."""
    if isinstance(value, dict):
        return {k: shown(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(v) for v in value]
    return ("tensor", value.shape) if hasattr(value, "offset") else repr(value)


keys = st.one_of(st.text("ab", min_size=1, max_size=2), st.integers(0, 3))
trees = st.recursive(
    st.one_of(st.integers(), st.text(max_size=2), st.none()),
    lambda inner: st.one_of(st.dictionaries(keys, inner, min_size=1, max_size=3), st.lists(inner, max_size=3)),
    max_leaves=12,
)


@given(st.dictionaries(keys, trees, min_size=1, max_size=3))
def test_leaves_put_together_are_what_was_taken_apart(tree: dict[Any, Any]) -> None:
    assert nested(leaves(tree)) == tree


def test_a_list_and_a_dictionary_of_numbers_stay_apart() -> None:
    value = {"a": [{"x": 1}], "b": {0: {"x": 1}}}
    paths = [p for p, _ in leaves(value)]
    assert [name_of(p) for p in paths] == ["a.0.x", "b.0.x"]
    assert [type(p[1]) for p in paths] == [Index, int]
    assert nested(leaves(value)) == value


def test_a_file_of_torch_keeps_its_dictionaries_and_settings(tmp_path: Path) -> None:
    source = torch_file(tmp_path / "a.pt", SETTINGS)
    done = transform(planned(open_checkpoint(source, None), tmp_path / "b.pt", None, Options()))
    assert not done.values
    assert "epoch" in done.carried
    assert shown(read_saved(tmp_path / "b.pt")) == shown(read_saved(source))
    for name, value in arrays_of(source).items():
        np.testing.assert_array_equal(arrays_of(tmp_path / "b.pt")[name], value)


def test_through_dcp_and_back(tmp_path: Path) -> None:
    source = torch_file(tmp_path / "a.pt", SETTINGS)
    moved(source, None, tmp_path / "dcp", None, format="dcp")
    moved(tmp_path / "dcp", None, tmp_path / "again", None, format="dcp")
    moved(tmp_path / "again", None, tmp_path / "b.pt", None)
    found = read_dcp(tmp_path / "again")
    assert found.paths["model.w"] == ("model", "w")
    assert shown(read_saved(tmp_path / "b.pt")) == shown(read_saved(source))


@pytest.mark.parametrize("skip", [(), ("optimizer.*", "epoch")])
def test_what_is_skipped_does_not_go_along(skip: tuple[str, ...], tmp_path: Path) -> None:
    source = torch_file(tmp_path / "a.pt", SETTINGS)
    moved(source, None, tmp_path / "b.pt", None, skip=skip)
    assert ("epoch" in read_saved(tmp_path / "b.pt")) == (not skip)
    assert ("optimizer" in read_saved(tmp_path / "b.pt")) == (not skip)


def test_what_could_run_code_stays_behind_and_is_named(tmp_path: Path) -> None:
    call = Call(Name("os", "system"), ("true",))
    source = torch_file(tmp_path / "a.pt", {"epoch": 3, "evil": call, "within": {"deep": [1, call]}})
    done = transform(planned(open_checkpoint(source, None), tmp_path / "b.pt", None, Options()))
    assert set(done.values) == {"evil", "within.deep"}
    assert set(read_saved(tmp_path / "b.pt")) == {"epoch", "model", "ema"}
    assert not is_plain({"a": (Name("os", "system"),)})


def test_formats_of_tensors_alone_name_what_they_leave_out(tmp_path: Path) -> None:
    source = torch_file(tmp_path / "a.pt", {"epoch": 3})
    done = transform(planned(open_checkpoint(source, None), tmp_path / "b.npz", None, Options()))
    assert (done.values, done.carried) == (("epoch",), ())


def test_files_beside_go_into_a_folder_of_the_same_kind(tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    write_file(folder / "model.safetensors", {"w": np.arange(4.0)})
    (folder / "config.json").write_text('{"hidden": 2}')
    done = transform(planned(open_checkpoint(folder, None), tmp_path / "out", None, Options()))
    assert done.carried == ("config.json",)
    assert (tmp_path / "out/config.json").read_text() == '{"hidden": 2}'
    done = transform(planned(open_checkpoint(folder, None), tmp_path / "out.npz", None, Options()))
    assert done.values == ("file config.json",)
    moved(folder, None, tmp_path / "bare", None, skip=("config.json",))
    assert not (tmp_path / "bare/config.json").exists()


def test_settings_that_differ_between_ranks_stay_behind(tmp_path: Path) -> None:
    shapes = {"w": (4, 6)}
    rng = random.Random(0)
    lays, (weights, slots) = random_layouts(rng, shapes), random_tensors(rng, shapes)
    write_ranks(tmp_path / "a", lays, weights, slots)
    moved(tmp_path / "a", lays, tmp_path / "b", lays, format="torch")
    for file in (tmp_path / "b").glob("rank_*/checkpoint.pt"):
        content = read_file(file)
        rank = int(file.parent.name.removeprefix("rank_"))
        entries = [Entry(n, a.dtype, a.shape) for n, a in content.arrays.items()]
        held = arrays_of(file)
        arranged = TorchFile({"step": 5, "rank": rank}).arrange(entries, {})
        write_arranged(file, arranged, entries, [held[e.name] for e in entries])
    done = transform(
        planned(open_checkpoint(tmp_path / "b", lays), tmp_path / "c", random_layouts(rng, shapes), Options())
    )
    assert done.carried == ("step",)
    assert len(list((tmp_path / "b").glob("rank_*"))) > 1
    assert done.values == ("rank",)
    for file in (tmp_path / "c").glob("rank_*/checkpoint.pt"):
        assert read_saved(file)["step"] == 5


def test_groups_of_an_optimizer_list_parameters_under_their_new_names(tmp_path: Path) -> None:
    source = torch_file(tmp_path / "a.pt", SETTINGS)
    rules = rules_of(tmp_path, {"w": "weight"})
    moved(source, None, tmp_path / "b.pt", None, rules=rules)
    found = read_saved(tmp_path / "b.pt")
    assert found["optimizer"]["param_groups"][0]["params"] == ["weight", "b"]
    assert set(found["model"]) == {"weight", "b"}
    assert found["optimizer"]["param_groups"][1] == {"lr": 0.2, "params": []}
