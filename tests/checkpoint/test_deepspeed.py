"""DeepSpeed's checkpoints: whatever the stage and the ranks, tensors come out as they went in; strangers' files are
read or refused."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.checkpoint.source import Checkpoint, open_checkpoint
from planner.checkpoint.transforming import Options, planned, transform
from planner.errors import InputError, UsageError
from planner.stored.arrays import Files
from planner.stored.copying import read_block
from planner.stored.formats.pickled import Call, Made, Name
from planner.stored.formats.torch_file import read_saved
from planner.stored.moves import Held, without_repeats
from tests.checkpoint.deepspeed_files import save, size, state_of, write_zero
from tests.checkpoint.layouts import Whole, random_layouts, random_shape, write_file
from tests.checkpoint.test_transforming import arrays_of, check_ranks, moved
from tests.cli.command import run

SHAPES = {"a.weight": (5, 7), "a.bias": (7,), "b": (3, 2, 4), "scale": ()}
MODEL, OPTIMIZER = "mp_rank_00_model_states.pt", "zero_pp_rank_{}_mp_rank_00_optim_states.pt"


def opened(place: Path) -> Whole:
    return contents(open_checkpoint(place, None))


def contents(found: Checkpoint) -> Whole:
    with Files() as files:
        return {
            n: read_block(Held(without_repeats(h.pieces), h.arrays, h.dtype, h.order), [(0, k) for k in h.shape], files)
            for n, h in found.tensors.items()
        }


def check_same(found: Whole, wanted: Whole) -> None:
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype, name
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("seed", range(60))
def test_any_stage_and_ranks_to_any_layout_and_to_a_universal_checkpoint(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    shapes = {f"p{i}.weight": random_shape(rng) for i in range(rng.randint(1, 6))}
    names = list(shapes)
    rng.shuffle(names)
    cut = rng.randint(1, len(names))
    groups = [g for g in (names[:cut], names[cut:]) if g]
    stage, ranks, state = rng.choice([1, 2, 3]), rng.randint(1, 6), state_of(rng, shapes)
    buffers: Whole = {"seen": np.arange(3.0), "count": np.array(7)}
    write_zero(tmp_path / "zero", state, groups, ranks, stage, mapped=rng.random() < 0.5,
               aligned=rng.choice([0, 0, 3]), module=buffers, more={"epoch": 4, "rng": np.arange(5)})  # fmt: skip
    steps = {f"{n}.step": np.array(5, np.float32) for n in shapes}
    everything = state | steps | buffers | {"rng": np.arange(5)}
    found = open_checkpoint(tmp_path / "zero", None)
    check_same(contents(found), everything)
    assert set(found.tensors) == set(everything)
    assert found.values["epoch"] == 4
    memory = rng.choice([1 << 28, 200])
    kind = rng.choice(["deepspeed", "deepspeed-zero3", ""])
    moved(tmp_path / "zero", None, tmp_path / "universal", None, memory=memory, workers=rng.choice([1, 3]), format=kind)
    back = open_checkpoint(tmp_path / "universal", None)
    check_same(contents(back), everything)
    assert set(back.tensors) == set(everything)
    assert (back.values["epoch"], back.values["optimizer.param_groups"][0]["lr"]) == (4, 0.1)
    lays = random_layouts(rng, shapes)
    moved(tmp_path / rng.choice(["zero", "universal"]), None, tmp_path / "ranks", lays, format="npz", memory=memory,
          skip=["*.exp_avg_sq", "*.step", "seen", "count", "rng"])  # fmt: skip
    weights = {n: state[n] for n in shapes}
    check_ranks(tmp_path / "ranks", lays, weights, {f"{n}.exp_avg": state[f"{n}.exp_avg"] for n in shapes})


def test_frozen_and_shared_parameters_of_zero_3(tmp_path: Path) -> None:
    state = state_of(random.Random(1), SHAPES)
    frozen = np.arange(10, dtype=np.float16).reshape(2, 5)
    place = write_zero(tmp_path, state, [list(SHAPES)], 3, 3)
    for r in range(3):
        file = place / f"zero_pp_rank_{r}_{MODEL}"
        part = np.concatenate([frozen.reshape(-1), np.full(2, np.nan, np.float16)])[4 * r : 4 * r + 4]
        told: dict[str, Any] = {
            "module": {"frozen": np.zeros(0, np.float16)}, "param_shapes": [{n: size(s) for n, s in SHAPES.items()}],
            "shared_params": {"head": "a.weight"}, "frozen_param_shapes": {"frozen": size((2, 5))},
            "frozen_param_fragments": {"frozen": part},
        }  # fmt: skip
        save(file, told)
    found = opened(tmp_path)
    check_same(found, {"frozen": frozen, "head": state["a.weight"]})
    moved(tmp_path, None, tmp_path / "u", None)
    check_same(opened(tmp_path / "u"), state | {"frozen": frozen, "head": state["a.weight"]})
    (place / f"zero_pp_rank_1_{MODEL}").unlink()
    with pytest.raises(InputError, match=r"ranks \[0, 2\]"):
        open_checkpoint(tmp_path, None)


def test_universal_checkpoints_of_zero_3_are_flat_and_the_model_says_their_shapes(tmp_path: Path) -> None:
    state = state_of(random.Random(2), SHAPES)
    for n in SHAPES:
        for slot in ("fp32", "exp_avg", "exp_avg_sq"):
            save(tmp_path / "step/zero" / n / f"{slot}.pt", state[n if slot == "fp32" else f"{n}.{slot}"].reshape(-1))
    once = {"optimizer_state_dict": {"state": {0: {"step": 9}}}, "param_groups": [{"lr": 0.5}]}
    save(tmp_path / "step/zero/optimizer_state.pt", once)
    with pytest.raises(InputError, match="no file of the model says the shape"):
        open_checkpoint(tmp_path / "step", None)
    told: dict[str, Any] = {"module": {}, "param_shapes": [{n: size(s) for n, s in SHAPES.items()}]}
    save(tmp_path / f"step/zero_pp_rank_0_{MODEL}", told)
    (tmp_path / "latest_universal").write_text("step\n")
    check_same(opened(tmp_path), state | {"a.weight.step": np.array(9)})
    moved(tmp_path, None, tmp_path / "again", None)  # a count that is a number stays one
    assert read_saved(tmp_path / "again/global_step9_universal/zero/b/step.pt") == 9
    check_same(opened(tmp_path / "again"), state | {"b.step": np.array(9)})
    shutil.rmtree(tmp_path / "step/zero/b")
    with pytest.raises(InputError, match="lacks 'b'"):
        open_checkpoint(tmp_path, None)


def test_an_optimizer_without_zero_is_known_by_names_or_stays_numbered(tmp_path: Path) -> None:
    weights = {"a": np.ones((2, 3), np.float32), "b": np.zeros(4, np.float32)}
    state = {i: {"exp_avg": v + 1, "step": np.array(2, np.float32)} for i, v in enumerate(weights.values())}
    groups: list[dict[str, Any]] = [{"lr": 0.1, "params": [0, 1]}]
    save(tmp_path / "x" / MODEL, {"module": weights, "optimizer": {"state": state, "param_groups": groups}})
    assert "optimizer.state.0.exp_avg" in opened(tmp_path / "x")
    with pytest.raises(InputError, match="numbers for parameters"):
        moved(tmp_path / "x", None, tmp_path / "u", None)
    groups[0]["param_names"] = ["a", "b"]
    save(tmp_path / "x" / MODEL, {"module": weights, "optimizer": {"state": state, "param_groups": groups}})
    check_same(opened(tmp_path / "x"), weights | {"a.exp_avg": weights["a"] + 1, "b.step": np.array(2, np.float32)})
    masters = [[v + 0.5 for v in weights.values()]]
    inner = {"state": state, "param_groups": groups}
    save(tmp_path / "x" / MODEL, {"module": weights, "optimizer": {"optimizer_state_dict": inner,
                                                                   "fp32_groups": masters}})  # fmt: skip
    check_same(opened(tmp_path / "x"), {"a": weights["a"] + 0.5, "b.exp_avg": weights["b"] + 1})


def test_other_formats_become_a_universal_checkpoint(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((3, 4)).astype(np.float16)
    moments = {s: rng.standard_normal((3, 4)).astype(np.float32) for s in ("moment1", "moment2")}
    write_file(tmp_path / "m.ckpt", {"a": a, "steps": np.arange(2), "frozen": np.ones(5, np.float16),
                                     "global_step": np.array([12], np.int32),
                                     **{f"{s}.a": v for s, v in moments.items()}})  # fmt: skip
    assert run("checkpoint", "transform", tmp_path / "m.ckpt", tmp_path / "u", "--format", "deepspeed") == 0
    step = tmp_path / "u/global_step12_universal"
    assert (tmp_path / "u/latest_universal").read_text() == (tmp_path / "u/latest").read_text() == step.name
    assert sorted(f.name for f in (step / "zero/a").iterdir()) == ["exp_avg.pt", "exp_avg_sq.pt", "fp32.pt", "step.pt"]
    assert not (step / "zero/frozen").exists()  # the optimizer keeps nothing of it: it is not trained
    expected = {"a": a.astype(np.float32), "a.exp_avg": moments["moment1"], "a.exp_avg_sq": moments["moment2"],
                "a.step": np.array(12, np.float32), "frozen": np.ones(5, np.float16)}  # fmt: skip
    check_same(opened(tmp_path / "u"), expected)
    once = read_saved(step / "zero/optimizer_state.pt")
    assert len(once["param_groups"]) == 256
    assert not any(g["params"] for g in once["param_groups"])
    assert run("checkpoint", "verify", tmp_path / "u") == 0
    file = step / "zero/a/exp_avg.pt"
    data = bytearray(file.read_bytes())
    data[-300] ^= 1
    file.write_bytes(data)
    assert run("checkpoint", "verify", tmp_path / "u") != 0


def test_zero_3_of_before_finds_tensors_and_no_dictionaries(tmp_path: Path) -> None:
    state = state_of(random.Random(1), SHAPES)
    write_zero(tmp_path, state, [["a.weight", "b"], ["a.bias", "scale"]], 2, 2)
    assert run("checkpoint", "transform", tmp_path, tmp_path / "u", "--format", "deepspeed-zero3") == 0
    step = tmp_path / "u/global_step5_universal"
    assert read_saved(step / "zero/b/fp32.pt").shape == (3, 2, 4)
    assert [f.name for f in step.glob("*.pt")] == [f"zero_pp_rank_0_{MODEL}"]
    once = read_saved(step / "zero/optimizer_state.pt")["optimizer_state_dict"]
    assert [g["params"] for g in once["param_groups"]] == [[0], [1]]
    check_same(opened(tmp_path / "u"), state)


def test_groups_that_differ_keep_what_they_have_under_zero_3(tmp_path: Path) -> None:
    place = write_zero(tmp_path, state_of(random.Random(1), SHAPES), [["a.weight", "b"], ["a.bias", "scale"]], 1, 2)
    _changed(lambda f: f["base_optimizer_state"]["param_groups"][1].update(lr=0.7), 0)(place)
    moved(tmp_path, None, tmp_path / "u", None)
    once = read_saved(tmp_path / "u/global_step5_universal/zero/optimizer_state.pt")
    assert [g["lr"] for g in once["param_groups"][:2]] == [0.1, 0.7]
    assert once["optimizer_state_dict"]["param_groups"] == [{"params": []}]


def test_a_loss_scaler_is_written_again_and_no_class_of_a_stranger(tmp_path: Path) -> None:
    state = state_of(random.Random(3), SHAPES)
    place = write_zero(tmp_path, state, [list(SHAPES)], 1, 2)
    own = Made(Name("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler"),
               {"cur_scale": 1024.0, "dtype": Name("torch", "float16")})  # fmt: skip
    for scaler, kept in ((own, True), (Call(Name("os", "system"), ("true",)), False)):
        file = place / OPTIMIZER.format(0)
        held = {"optimizer_state_dict": _found(file) | {"loss_scaler": scaler, "dynamic_loss_scale": True}}
        save(file, held)
        moved(tmp_path, None, tmp_path / f"u{kept}", None)
        data = (tmp_path / f"u{kept}/global_step5_universal/zero/optimizer_state.pt").read_bytes()
        assert (b"DynamicLossScaler" in data, b"system" in data) == (kept, False)


def _found(file: Path) -> dict[str, Any]:
    """A file's optimizer, with its arrays."""

    def loaded(v: Any) -> Any:
        if isinstance(v, dict):
            return {k: loaded(x) for k, x in v.items()}
        if isinstance(v, list):
            return [loaded(x) for x in v]
        if hasattr(v, "nbytes"):
            with Files() as files:
                return files.read(v, [(0, n) for n in v.shape]).copy()
        return v

    found: dict[str, Any] = loaded(read_saved(file)["optimizer_state_dict"])
    return found


def _changed(change: Callable[[dict[str, Any]], object], rank: int = 1) -> Callable[[Path], None]:
    """What changes a rank's optimizer."""

    def run_on(place: Path) -> None:
        file = place / OPTIMIZER.format(rank)
        found = _found(file)
        change(found)
        save(file, {"optimizer_state_dict": found})

    return run_on


def _address(start: int, count: int) -> Made:
    return Made(Name("deepspeed.utils.tensor_fragment", "fragment_address"), {"numel": count, "start": start})


def _first(found: dict[str, Any]) -> str:
    return str(next(iter(found["param_slice_mappings"][0])))


def _move(found: dict[str, Any], start: int, count: int) -> None:
    found["param_slice_mappings"][0][_first(found)] = _address(start, count)


FAULTS: dict[str, tuple[int, Callable[[Path], object], str]] = {
    "a rank is missing": (2, lambda p: (p / OPTIMIZER.format(1)).unlink(), "none of rank 1"),
    "a rank too many": (2, lambda p: shutil.copy(p / OPTIMIZER.format(0), p / OPTIMIZER.format(3)), "3 ranks"),
    "two files of a rank": (
        2, lambda p: shutil.copy(p / OPTIMIZER.format(0), p / f"bf16_{OPTIMIZER.format(0)}"), "rank 0 has"
    ),
    "no optimizer at all": (
        2, lambda p: [f.unlink() for f in p.glob("*optim_states.pt")], "lacks the files of the optimizer"
    ),
    "no model": (2, lambda p: (p / MODEL).unlink(), "lacks the files of the model"),
    "a model without shapes": (2, lambda p: save(p / MODEL, {"module": {}}), "expected the shapes of 1 groups"),
    "a file that is cut off": (2, lambda p: (p / OPTIMIZER.format(1)).write_bytes(b"PK"), "rank_1_"),
    "an empty file": (2, lambda p: (p / MODEL).write_bytes(b""), MODEL),
    "no optimizer in it": (2, lambda p: save(p / OPTIMIZER.format(1), {"optimizer_state_dict": {}}), "neither"),
    "tensor-parallel ranks": (
        2, lambda p: shutil.copy(p / MODEL, p / "mp_rank_01_model_states.pt"), "tensor-parallel ranks"
    ),
    "pipeline stages": (2, lambda p: shutil.copy(p / MODEL, p / "layer_00-model_states.pt"), "pipeline stages"),
    "experts": (
        2, lambda p: shutil.copy(p / MODEL, p / "layer_0_expert_1_mp_rank_00_model_states.pt"), "files of experts"
    ),
    "another count of ranks": (2, _changed(lambda f: f.update(partition_count=[7]), 0), "optimizer of 7 ranks"),
    "a huge count of ranks": (2, _changed(lambda f: f.update(partition_count=1 << 60), 0), "none of rank 3"),
    "a partition that is shorter": (
        2, _changed(lambda f: f.update(single_partition_of_fp32_groups=[np.zeros(3, np.float32)])), "of an array [3]"
    ),
    "a partition of another type": (
        2, _changed(lambda f: f.update(single_partition_of_fp32_groups=[np.zeros(26, np.float64)])), "float64"
    ),
    "a partition that is a matrix": (
        2, _changed(lambda f: f.update(single_partition_of_fp32_groups=[np.zeros((2, 13), np.float32)])), "no flat"
    ),
    "a range behind the end": (2, _changed(lambda f: _move(f, 1 << 40, 9)), "elements"),
    "a range before the beginning": (2, _changed(lambda f: _move(f, -4, 9)), "at element -4"),
    "a range that is longer": (2, _changed(lambda f: _move(f, 0, 10)), "elements of a tensor"),
    "a range that is no number": (2, _changed(lambda f: _move(f, 0, "9")), "in place of a number"),  # type: ignore[arg-type]
    "a parameter of another model": (
        2, _changed(lambda f: f["param_slice_mappings"][0].update(other=_address(0, 1))), "'other' is no parameter"
    ),
    "another count of steps": (
        2, _changed(lambda f: f["base_optimizer_state"]["state"][0].update(step=np.array(6, np.float32))), "step of"
    ),
    "a slot that a rank lacks": (
        2, _changed(lambda f: f["base_optimizer_state"]["state"][0].pop("exp_avg")), "no exp_avg in"
    ),
    "a count in a large array": (
        2, _changed(lambda f: f["base_optimizer_state"]["state"][0].update(step=np.zeros((1 << 9, 2))), 0), "number"
    ),
    "ranks of two stages": (
        2, _changed(lambda f: f.update(fp32_flat_groups=[], single_partition_of_fp32_groups=[])), "another checkpoint"
    ),
    "a group that is shorter": (
        3, _changed(lambda f: f.update(fp32_flat_groups=[np.zeros(3, np.float32)])), "expected 24 elements"
    ),
    "a model of another rank": (
        3, lambda p: save(p / f"zero_pp_rank_0_{MODEL}", {"module": {}, "param_shapes": [{"z": size((1 << 40,))}]}),
        "leave files of one checkpoint",
    ),
    "a shape that is none": (
        3, lambda p: save(p / f"zero_pp_rank_0_{MODEL}", {"module": {}, "param_shapes": [{"z": size((-1, 2))}]}),
        "a shape",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_files_that_do_not_go_together_are_refused(fault: str, tmp_path: Path) -> None:
    stage, spoil, message = FAULTS[fault]
    place = write_zero(tmp_path, state_of(random.Random(4), SHAPES), [list(SHAPES)], 3, stage)
    spoil(place)
    with pytest.raises(InputError) as error:
        open_checkpoint(tmp_path, None)
    assert message in str(error.value)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize("tag", ["", ".", "..", "../zero", "/etc", "nowhere", "global_step5/..", "a\0b", "\udcff" * 9])
def test_a_name_that_leaves_the_folder_is_refused(tag: str, tmp_path: Path) -> None:
    write_zero(tmp_path / "zero", state_of(random.Random(5), SHAPES), [list(SHAPES)], 2, 2)
    (tmp_path / "zero/latest").write_bytes(tag.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match="latest: "):
        open_checkpoint(tmp_path / "zero", None)


def test_a_link_of_a_step_to_elsewhere_is_refused(tmp_path: Path) -> None:
    place = write_zero(tmp_path / "zero", state_of(random.Random(5), SHAPES), [list(SHAPES)], 2, 2)
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="expected the name of a folder beside it"):
        open_checkpoint(tmp_path / "zero", None)


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "..", "x" * 256, "optimizer_state.pt"])
def test_a_parameter_that_no_folder_can_be_called_is_not_written(name: str, tmp_path: Path) -> None:
    write_file(tmp_path / "a.safetensors", {name: np.ones(3, np.float32)})
    with pytest.raises(InputError, match="a name that a folder can have"):
        moved(tmp_path / "a.safetensors", None, tmp_path / "u", None, format="deepspeed")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("tensors", "message"), [
    ({"a": (3,), "a.exp_avg": (3,)}, "no count of steps"),
    ({"a": (3,), "a.exp_avg": (4,), "a.step": ()}, r"expected the shape \[3\]"),
    ({"a": (3,), "a.exp_avg": (3,), "a.step": (2,)}, "expected one number"),
    ({"a": (3,), "a.exp_avg": (3,), "a.step": (), "b": (2,), "b.exp_avg": (2,), "b.step": (1,)}, "one count of steps"),
])  # fmt: skip
def test_what_deepspeed_could_not_load_is_not_written(
    tensors: dict[str, tuple[int, ...]], message: str, tmp_path: Path
) -> None:
    counts = {"b.step": 2.0}
    write_file(tmp_path / "a.npz", {n: np.full(s, counts.get(n, 1), np.float32) for n, s in tensors.items()})
    with pytest.raises(InputError, match=message):
        moved(tmp_path / "a.npz", None, tmp_path / "u", None, format="deepspeed")


def test_a_state_without_its_weight_is_not_written(tmp_path: Path) -> None:
    write_zero(tmp_path, state_of(random.Random(9), SHAPES), [list(SHAPES)], 2, 3)
    with pytest.raises(InputError, match="without the parameter b"):
        moved(tmp_path, None, tmp_path / "u", None, skip=["b"])


def test_a_count_that_is_no_number_is_refused(tmp_path: Path) -> None:
    write_zero(tmp_path, state_of(random.Random(8), SHAPES), [list(SHAPES)], 1, 2, step=float("nan"))
    with pytest.raises(InputError, match="count of an optimizer's steps, found nan"):
        moved(tmp_path, None, tmp_path / "u", None)
    with pytest.raises(InputError, match="count of an optimizer's steps, found nan"):
        moved(tmp_path, None, tmp_path / "u.ckpt", None)


def test_options_that_do_not_go_with_it_are_refused(tmp_path: Path) -> None:
    write_file(tmp_path / "a.npz", {"a": np.ones(3, np.float32)})
    source = open_checkpoint(tmp_path / "a.npz", None)
    with pytest.raises(UsageError, match="its weights are in fp32"):
        planned(source, tmp_path / "u", None, Options(format="deepspeed", dtype=np.dtype(np.float16)))
    with pytest.raises(UsageError, match="leave --to out"):
        planned(source, tmp_path / "u", random_layouts(random.Random(0), {"a": (3,)}), Options(format="deepspeed"))


@pytest.mark.parametrize("stage", [2, 3, 0])
def test_damaged_files_are_read_or_refused_and_never_crash(stage: int, tmp_path: Path) -> None:
    rng = random.Random(stage)
    write_zero(tmp_path / "zero", state_of(rng, SHAPES), [list(SHAPES)], 2, stage or 3)
    place = tmp_path / "zero"
    if not stage:
        place = moved(place, None, tmp_path / "universal", None)
    files = sorted(f for f in place.rglob("*.pt") if not stage or f.parent.name == "global_step5")
    whole = {f: f.read_bytes() for f in files}
    refused = 0
    for _ in range(700):
        file = rng.choice(files)
        data = bytearray(whole[file])
        for _ in range(rng.choice([1, 2, 8])):
            at = rng.randrange(len(data))
            match rng.randrange(3):
                case 0:
                    data[at] = rng.randrange(256)
                case 1:
                    del data[at : at + rng.randint(1, 9)]
                case _:
                    data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 9)))
        file.write_bytes(data)
        try:
            held = open_checkpoint(place, None).tensors.values()
        except InputError as error:
            refused += str(tmp_path) in str(error)
        else:
            for array in (a for h in held for a in h.arrays if a.data is None):
                assert array.end <= array.file.stat().st_size
        file.write_bytes(whole[file])
    assert refused > 100


def test_the_last_step_is_read_or_the_one_that_is_given(tmp_path: Path) -> None:
    old, new = (state_of(random.Random(s), SHAPES) for s in (6, 7))
    write_zero(tmp_path, old, [list(SHAPES)], 2, 1).rename(tmp_path / "global_step4")
    write_zero(tmp_path, new, [list(SHAPES)], 3, 1)
    check_same(opened(tmp_path), new)
    check_same(opened(tmp_path / "global_step4"), old)
    moved(tmp_path, None, tmp_path / "one.safetensors", None)
    check_same(arrays_of(tmp_path / "one.safetensors"), new)


def test_what_lies_beside_a_step_is_read_when_that_is_gone(tmp_path: Path) -> None:
    state = state_of(random.Random(6), SHAPES)
    place = write_zero(tmp_path, state, [list(SHAPES)], 2, 1)
    write_file(tmp_path / "model.safetensors", {"a.weight": np.ones(3, np.float16)})
    check_same(opened(tmp_path), state)
    shutil.rmtree(place)
    check_same(opened(tmp_path), {"a.weight": np.ones(3, np.float16)})


def test_a_run_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    state = state_of(random.Random(10), SHAPES)
    write_zero(tmp_path / "zero", state, [list(SHAPES)], 2, 3)

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    plan = planned(open_checkpoint(tmp_path / "zero", None), tmp_path / "u", None, Options(sync=False))
    with pytest.raises(KeyboardInterrupt):
        transform(plan, stop)
    assert not (tmp_path / "u").exists()
    options = Options(sync=False, resume=True)
    done = transform(planned(open_checkpoint(tmp_path / "zero", None), tmp_path / "u", None, options))
    assert done.found_bytes > 0
    check_same(opened(tmp_path / "u"), state)
    assert run("checkpoint", "verify", tmp_path / "u") == 0
