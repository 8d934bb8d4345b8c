"""What could be lost or changed in silence: each is refused, or said."""

from __future__ import annotations

import fcntl
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner import checkpoint
from planner.checkpoint.comparing import compared, unlike, unsound
from planner.checkpoint.layouts import Layouts, Spread
from planner.checkpoint.source import open_checkpoint, rank_files
from planner.checkpoint.transforming import Options, planned, transform
from planner.cli.main import main
from planner.errors import InputError, OptionError, UsageError
from planner.ir import DeviceMesh, Layout
from planner.stored import writing
from planner.stored.elements import weight_type
from tests.checkpoint.layouts import random_tensors, write_file, write_ranks
from tests.checkpoint.test_faults import SHAPES, rows_and_columns
from tests.checkpoint.test_renaming import rules_of
from tests.checkpoint.test_transforming import arrays_of, check_ranks, moved


def whole(tmp_path: Path, **tensors: Any) -> Path:
    write_file(tmp_path / "whole.npz", {n.replace("__", "."): np.asarray(v) for n, v in tensors.items()})
    return tmp_path / "whole.npz"


def one_parameter(rank: int = 2, shape: tuple[int, ...] | None = (4, 2)) -> Layouts:
    mesh = DeviceMesh.of(rank)
    layout = Layout((("x",), *((),) * (len(shape or (1, 1)) - 1)))
    return Layouts("plan", rank, {"w": Spread(layout, mesh, (0,), shape)})


def test_a_run_with_another_map_does_not_go_on_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = np.arange(16.0).reshape(4, 4)
    source = whole(tmp_path, w=value)

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(writing.Writing, "finish", dies)
        with pytest.raises(KeyboardInterrupt):
            moved(source, None, tmp_path / "b.npz", None)
    turned = rules_of(tmp_path, {"w": {"name": "w", "transposed": True}})
    moved(source, None, tmp_path / "b.npz", None, rules=turned, resume=True)
    np.testing.assert_array_equal(arrays_of(tmp_path / "b.npz")["w"], value.T)


def test_a_stage_whose_files_are_gone_is_missed(tmp_path: Path) -> None:
    mesh = DeviceMesh.of(2)
    spreads = {n: Spread(Layout((("x",), ())), mesh, (first,), (4, 2)) for n, first in (("a", 0), ("b", 2))}
    lays = Layouts("plan", 4, spreads)
    weights, slots = random_tensors(random.Random(0), {"a": (4, 2), "b": (4, 2)})
    write_ranks(tmp_path / "source", lays, weights, slots)
    for rank in (2, 3):
        (tmp_path / f"source/rank_{rank}/checkpoint.safetensors").unlink()
    with pytest.raises(InputError, match=r"no rank has b, which plan lays out \(rank 2 or 3"):
        moved(tmp_path / "source", lays, tmp_path / "all.npz", None)
    moved(tmp_path / "source", lays, tmp_path / "all.npz", None, partial=True)
    assert set(arrays_of(tmp_path / "all.npz")) == {"a", "a.exp_avg"}


def test_an_index_is_believed(tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    write_file(folder / "model-00001-of-00002.safetensors", {"a": np.ones(3), "unlisted": np.ones(1)})
    write_file(folder / "consolidated.safetensors", {"a": np.zeros(3), "b": np.zeros(2)})
    held = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": held}))
    with pytest.raises(InputError, match=r"names model-00002-of-00002\.safetensors, which"):
        open_checkpoint(folder, None)
    write_file(folder / "model-00002-of-00002.safetensors", {"c": np.ones(2)})
    with pytest.raises(InputError, match="has no b, which the index says"):
        open_checkpoint(folder, None)
    write_file(folder / "model-00002-of-00002.safetensors", {"b": np.ones(2)})
    found = open_checkpoint(folder, None)
    assert set(found.tensors) == {"a", "b"}
    assert set(found.values) == {"file consolidated.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../x.safetensors"}}))
    with pytest.raises(InputError, match="elsewhere"):
        open_checkpoint(folder, None)


def test_two_runs_do_not_write_one_place(tmp_path: Path) -> None:
    source = whole(tmp_path, w=np.ones(3))
    with (tmp_path / ".b.npz.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="another process is writing there"):
            moved(source, None, tmp_path / "b.npz", None)
    moved(source, None, tmp_path / "b.npz", None)


def test_a_weight_is_not_there_because_its_state_is(tmp_path: Path) -> None:
    source = whole(tmp_path, w__exp_avg=np.ones((4, 2)), base__w__orig=np.ones((4, 2)))
    with pytest.raises(InputError, match="has no w, which plan lays out"):
        moved(source, None, tmp_path / "b", one_parameter())


def test_state_with_numbers_for_parameters_is_refused(tmp_path: Path) -> None:
    source = whole(tmp_path, w=np.ones((4, 2)), optimizer__state__0__exp_avg=np.ones((4, 2)))
    with pytest.raises(InputError, match="has numbers for parameters"):
        moved(source, None, tmp_path / "b", one_parameter())
    done = transform(planned(open_checkpoint(source, None), tmp_path / "b", one_parameter(),
                             Options(skip=("optimizer.*",))))  # fmt: skip
    assert done.skipped == ("optimizer.state.0.exp_avg",)


def test_another_type_is_for_weights_alone(tmp_path: Path) -> None:
    source = whole(tmp_path, w=np.ones((4, 2), np.float32), w__step=np.array(1001, np.float32),
                   w__exp_avg=np.full((4, 2), 1.001, np.float32))  # fmt: skip
    moved(source, None, tmp_path / "b.pt", None, dtype=weight_type("bf16"))
    found = arrays_of(tmp_path / "b.pt")
    assert (found["w"].dtype.name, found["w.step"].dtype, found["w.exp_avg"].dtype) == (
        "bfloat16",
        np.float32,
        np.float32,
    )
    assert found["w.step"] == 1001
    with pytest.raises(ValueError, match="floating-point"):
        weight_type("int8")


def test_the_source_is_never_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    write_file(folder / "w.npz", {"w": np.ones((4, 2))})
    for place in (folder, folder / "w.npz", folder / "." / "w.npz", tmp_path):
        with pytest.raises(UsageError, match="holds the source"):
            moved(folder / "w.npz", None, place, one_parameter(), force=True)
    assert (folder / "w.npz").exists()
    (tmp_path / "link.npz").symlink_to(folder / "w.npz")
    with pytest.raises(UsageError, match="holds the source"):
        moved(folder / "w.npz", None, tmp_path / "link.npz", None, force=True)


def test_what_was_replaced_comes_back_when_the_new_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = whole(tmp_path, w=np.arange(8.0).reshape(4, 2))
    moved(source, None, tmp_path / "b", one_parameter())

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", dies)
        with pytest.raises(KeyboardInterrupt):
            moved(source, None, tmp_path / "b", one_parameter(4), force=True)
    assert not (tmp_path / "b").exists()
    moved(source, None, tmp_path / "b", one_parameter(4), force=True)
    assert sorted(rank_files(tmp_path / "b")) == [0, 1, 2, 3]
    assert not (tmp_path / ".b.old").exists()


def test_a_link_to_a_place_is_followed(tmp_path: Path) -> None:
    source = whole(tmp_path, w=np.ones((4, 2)))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    moved(source, None, tmp_path / "link", one_parameter())
    assert (tmp_path / "link").is_symlink()
    assert sorted(rank_files(tmp_path / "real")) == [0, 1]


def test_large_tensors_of_no_parameter_are_skipped_or_compared(tmp_path: Path) -> None:
    rows, columns = rows_and_columns()
    weights, slots = random_tensors(random.Random(0), SHAPES)
    write_ranks(tmp_path / "source", rows, weights, slots)
    for rank, file in rank_files(tmp_path / "source").items():
        write_file(file, {**arrays_of(file), "mask": np.full((200, 200), float(rank == 3))})
    with pytest.raises(InputError, match="mask differs between rank 0 and rank 3"):
        moved(tmp_path / "source", rows, tmp_path / "target", columns)
    moved(tmp_path / "source", rows, tmp_path / "target", columns, skip=("mask",))
    check_ranks(tmp_path / "target", columns, weights, slots)
    with pytest.raises(InputError, match="has no such tensor"):
        moved(tmp_path / "source", rows, tmp_path / "other", columns, skip=("mask", "maks"))


def test_what_every_rank_gets_whole_is_said(tmp_path: Path) -> None:
    source = whole(tmp_path, w=np.ones((4, 2)), extra=np.ones((3, 3)))
    plan = planned(open_checkpoint(source, None), tmp_path / "b", one_parameter(), Options())
    assert transform(plan).everywhere == ("extra",)
    plan = planned(open_checkpoint(source, None), tmp_path / "c", one_parameter(), Options(partial=True))
    assert transform(plan).skipped == ("extra",)


def test_weights_go_through_dcp_with_and_without_state(tmp_path: Path) -> None:
    for state in ({}, {"w__exp_avg": np.ones((4, 2))}):
        source = whole(tmp_path, w=np.arange(8.0).reshape(4, 2), **state)
        moved(source, None, tmp_path / f"dcp{len(state)}", None, format="dcp")
        moved(tmp_path / f"dcp{len(state)}", None, tmp_path / f"hf{len(state)}", None, format="huggingface")
        assert set(arrays_of(tmp_path / f"hf{len(state)}/model.safetensors")) == {"w"}


def test_counts_of_steps_are_as_each_framework_has_them(tmp_path: Path) -> None:
    write_file(tmp_path / "a.ckpt", {"w": np.ones((4, 2)), "moment1.w": np.ones((4, 2)), "moment2.w": np.ones((4, 2)),
                                     "global_step": np.array([7], np.int32)})  # fmt: skip
    moved(tmp_path / "a.ckpt", None, tmp_path / "dcp", None, format="dcp")
    found = open_checkpoint(tmp_path / "dcp", None)
    assert {"model.w", "optimizer.state.w.exp_avg", "optimizer.state.w.exp_avg_sq", "optimizer.state.w.step"} == set(
        found.tensors
    )
    moved(tmp_path / "dcp", None, tmp_path / "b.ckpt", None)
    again = arrays_of(tmp_path / "b.ckpt")
    assert again["global_step"].tolist() == [7]
    assert set(again) == {"w", "moment1.w", "moment2.w", "global_step"}
    moved(tmp_path / "dcp", None, tmp_path / "ranks", one_parameter(), format="npz")
    assert arrays_of(rank_files(tmp_path / "ranks")[1])["w.step"] == 7


def test_a_copy_that_is_gone_is_found_by_comparing(tmp_path: Path) -> None:
    mesh = DeviceMesh.of(2, 2)
    lays = Layouts("plan", 4, {"w": Spread(Layout((("x",), ())), mesh, (0,), (4, 2))})
    source = whole(tmp_path, w=np.arange(8.0).reshape(4, 2))
    moved(source, None, tmp_path / "b", lays)
    assert compared(source, tmp_path / "b", None, lays) == ([], 1)
    (tmp_path / "b/rank_3/checkpoint.npz").unlink()
    assert compared(source, tmp_path / "b", None, lays)[0] == [f"w: rank 3 of {tmp_path / 'b'} lacks it"]
    (tmp_path / "b/rank_2/checkpoint.npz").unlink()
    assert "a part of it is nowhere" in compared(source, tmp_path / "b", None, lays)[0][0]


@pytest.mark.parametrize(("document", "message"), [
    ({"w": {"name": "q", "transpose": True}}, "found the key 'transpose'"),
    ({"w": {"name": "q", "transposed": "yes"}}, "found transposed: 'yes'"),
    ({"w": "q", "*": "x.*"}, "fits several entries"),
])  # fmt: skip
def test_a_map_says_what_it_means(document: Any, message: str, tmp_path: Path) -> None:
    source = whole(tmp_path, w=np.ones((4, 2)))
    with pytest.raises(InputError, match=message):
        moved(source, None, tmp_path / "b.npz", None, rules=rules_of(tmp_path, document))


def test_names_are_exchanged_and_state_with_them(tmp_path: Path) -> None:
    source = whole(tmp_path, a=np.zeros(2), b=np.ones(2), optimizer__state__a__exp_avg=np.full(2, 5.0))
    moved(source, None, tmp_path / "c.npz", None, rules=rules_of(tmp_path, {"a": "state", "b": "a"}))
    found = arrays_of(tmp_path / "c.npz")
    assert found["a"].tolist() == [1, 1]
    assert found["optimizer.state.state.exp_avg"].tolist() == [5, 5]


def test_tensors_without_elements_and_counts_of_one_element_stay(tmp_path: Path) -> None:
    mesh = DeviceMesh.of(2)
    lays = Layouts("plan", 2, {"none": Spread(Layout(((), ("x",))), mesh, (0,), (0, 4)),
                               "bias": Spread(Layout((("x",),)), mesh, (0,), (8,))})  # fmt: skip
    source = whole(tmp_path, none=np.ones((0, 4)), bias=np.ones(8), bias__step=np.ones(1))
    moved(source, None, tmp_path / "b", lays)
    for file in rank_files(tmp_path / "b").values():
        assert {n: a.shape for n, a in arrays_of(file).items()} == {"none": (0, 4), "bias": (4,), "bias.step": (1,)}
    moved(tmp_path / "b", lays, tmp_path / "c.npz", None)
    assert {n: a.shape for n, a in arrays_of(tmp_path / "c.npz").items()} == {
        "none": (0, 4),
        "bias": (8,),
        "bias.step": (1,),
    }


def test_mindspore_layouts_have_to_divide(tmp_path: Path) -> None:
    source = whole(tmp_path, w=np.ones((5, 2)))
    with pytest.raises(InputError, match="does not divide into"):
        moved(source, None, tmp_path / "b", one_parameter(2, None))
    with pytest.raises(InputError, match="expected 2 dimensions"):
        moved(whole(tmp_path, w=np.ones(4)), None, tmp_path / "b", one_parameter(2, None))


def test_a_source_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    source = whole(tmp_path, w=np.ones((4, 2)))
    plan = planned(open_checkpoint(source, None), tmp_path / "b", one_parameter(), Options())
    os.utime(source, (1, 1))
    with pytest.raises(InputError, match="was changed while it was copied"):
        transform(plan)
    assert not (tmp_path / "b").exists()


def test_endings_and_formats_agree(tmp_path: Path) -> None:
    source = whole(tmp_path, w=np.ones((4, 2)))
    with pytest.raises(UsageError, match=r"as npz, give a name with the ending \.npz"):
        moved(source, None, tmp_path / "b.pt", None, format="npz")


def test_a_text_in_a_checkpoint_of_mindspore_is_no_tensor_and_is_said(tmp_path: Path) -> None:
    """Bytes that save_checkpoint of MindSpore 2.10 wrote of a parameter `w` and append_dict={"note": "hello"}."""
    written = (
        "0a1a0a0177121508021207466c6f617433321a080000803f0000803f"
        "0a250a046e6f7465121d080012037374721a1468000000650000006c0000006c0000006f000000"
    )
    (tmp_path / "a.ckpt").write_bytes(bytes.fromhex(written))
    plan = planned(open_checkpoint(tmp_path / "a.ckpt", None), tmp_path / "b.npz", None, Options())
    assert plan.source.values == {"note": "hello"}
    assert transform(plan).values == ("note",)
    assert arrays_of(tmp_path / "b.npz")["w"].tolist() == [1, 1]


def test_copies_that_differ_between_ranks_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mesh = DeviceMesh.of(2, 2)
    lays = Layouts("plan", 4, {"w": Spread(Layout((("x",), ())), mesh, (0,), (4, 2))})
    weights, slots = random_tensors(random.Random(0), {"w": (4, 2)})
    write_ranks(tmp_path / "a", lays, weights, slots)
    assert unlike(tmp_path / "a", lays) == ([], 2)
    file = tmp_path / "a/rank_3/checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    found, _ = unlike(tmp_path / "a", lays)
    assert len(found) == 1
    assert "differ between ranks that hold the same" in found[0]
    assert main(["checkpoint", "verify", str(tmp_path / "a"), "--replicas"]) == 2
    assert "give --to" in capsys.readouterr().err


def test_the_file_of_one_rank_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    lays = one_parameter()
    write_ranks(tmp_path / "ranks", lays, {"w": np.arange(8.0).reshape(4, 2)}, {})
    (tmp_path / "alone").mkdir()
    one = next(iter(rank_files(tmp_path / "ranks").values()))
    (tmp_path / "alone" / "model.safetensors").write_bytes(one.read_bytes())
    for place in (tmp_path / "alone", one):
        with pytest.raises(InputError, match=r"w: expected the shape \[4, 2\], found \[2, 2\], a shard under"):
            moved(place, lays, tmp_path / "b.npz", None)
    moved(whole(tmp_path, w=np.zeros((6, 2))), lays, tmp_path / "b.npz", None)  # a padded vocabulary is no shard


def test_nothing_is_written_into_the_source(tmp_path: Path) -> None:
    lays = one_parameter()
    write_ranks(tmp_path / "ranks", lays, {"w": np.zeros((4, 2))}, {})
    before = sorted(tmp_path.rglob("*"))
    for place in (tmp_path / "ranks" / "merged.npz", tmp_path / "ranks" / "others" / "deep.npz"):
        with pytest.raises(UsageError, match="lies in the source"):
            moved(tmp_path / "ranks", lays, place, None)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_leads_to_the_file_that_is_written(tmp_path: Path) -> None:
    source = whole(tmp_path, w=np.arange(4.0))
    write_file(tmp_path / "first.npz", {"w": np.zeros(4)})
    for link, target in (("current.npz", "first.npz"), ("new.npz", "second.npz")):
        (tmp_path / link).symlink_to(target)
        moved(source, None, tmp_path / link, None, force=True)
        assert (tmp_path / link).is_symlink()
        assert (tmp_path / target).is_file()
        np.testing.assert_array_equal(arrays_of(tmp_path / target)["w"], np.arange(4.0))
        assert unsound(tmp_path / link) == ([], 1)


def test_a_number_that_a_type_cannot_hold_is_an_error(tmp_path: Path) -> None:
    source = whole(tmp_path, w=np.array([1.0, 1e6], np.float32), v=np.array([np.inf, 2.0], np.float32))
    with pytest.raises(InputError, match=r"tensor w: 1000000.0 is too large for float16"):
        moved(source, None, tmp_path / "b.npz", None, dtype=weight_type("fp16"))
    moved(source, None, tmp_path / "c.npz", None, dtype=weight_type("fp16"), skip=("w",))
    np.testing.assert_array_equal(arrays_of(tmp_path / "c.npz")["v"], np.array([np.inf, 2.0], np.float16))


def test_ranks_that_were_written_one_by_one_are_replaced_together(tmp_path: Path) -> None:
    source, lays = whole(tmp_path, w=np.zeros((4, 2))), one_parameter()
    for rank in (0, 1):
        moved(source, None, tmp_path / "ranks", lays, ranks=(rank,))
    moved(source, None, tmp_path / "ranks", lays, force=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="was not written here"):
        moved(source, None, tmp_path / "other", lays, force=True)


def test_a_folder_beside_a_model_is_said_to_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "hf" / "processor").mkdir(parents=True)
    write_file(tmp_path / "hf" / "model.safetensors", {"w": np.zeros(4)})
    opened = open_checkpoint(tmp_path / "hf", None)
    done = transform(planned(opened, tmp_path / "b.npz", None, Options(sync=False)))
    assert "folder processor" in done.values


def test_counts_of_steps_are_compared_whichever_way_they_are_held(tmp_path: Path) -> None:
    slots = {"w": np.zeros(2), "w.exp_avg": np.ones(2), "w.exp_avg_sq": np.ones(2), "w.step": np.array(4, np.float32)}
    write_file(tmp_path / "a.npz", slots)
    moved(tmp_path / "a.npz", None, tmp_path / "b.ckpt", None)
    assert compared(tmp_path / "a.npz", tmp_path / "b.ckpt", None, None) == ([], 4)
    write_file(tmp_path / "a.npz", slots | {"w.step": np.array(5, np.float32)})
    assert compared(tmp_path / "a.npz", tmp_path / "b.ckpt", None, None)[0] == ["global_step: expected 5, found 4"]


def test_python_says_what_is_wrong_with_its_arguments(tmp_path: Path) -> None:
    source, place = whole(tmp_path, w=np.zeros((4, 2))), tmp_path / "b.npz"
    wrong: dict[str, Any]
    for wrong in ({"workers": 0}, {"workers": -1}, {"memory": 0}, {"memory": 1.5}):
        with pytest.raises(OptionError, match="expected a whole number from 1 on"):
            checkpoint.transform(source, place, **wrong)
    with pytest.raises(OptionError, match="expected a plan, or the path"):
        checkpoint.transform(source, place, target=5)  # type: ignore[arg-type]
