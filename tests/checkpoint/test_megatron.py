"""Megatron's torch_dist folders and the known mappings, without Megatron: there and back byte by byte, and what is
refused.  tests/peer/test_checkpoint_megatron.py has Megatron itself."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from planner import checkpoint
from planner.checkpoint import megatron
from planner.checkpoint.families import MAPS
from planner.checkpoint.source import open_checkpoint
from planner.cli.main import main
from planner.errors import InputError, OptionError, UsageError
from planner.stored.formats.pickled import Call, read_pickle
from planner.stored.formats.torch_file import saved
from tests.checkpoint.layouts import Whole, write_file
from tests.checkpoint.test_transforming import arrays_of

LAYERS, HEADS, GROUPS, HEAD, WIDTH, INNER, WORDS, EXPERTS = 3, 4, 2, 2, 8, 6, 10, 2
CONFIG = {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "head_dim": HEAD,
          "hidden_size": WIDTH, "intermediate_size": INNER, "vocab_size": WORDS, "num_local_experts": EXPERTS,
          "n_layer": LAYERS, "n_head": HEADS, "n_embd": WIDTH}  # fmt: skip


def shapes(kind: str) -> dict[str, tuple[int, ...]]:
    if kind == "hf-gpt2":
        out: dict[str, tuple[int, ...]] = {
            "transformer.wte.weight": (WORDS, WIDTH),
            "transformer.wpe.weight": (5, WIDTH),
        }
        for i in range(LAYERS):
            for name, (a, b) in {"attn.c_attn": (WIDTH, 3 * WIDTH), "attn.c_proj": (WIDTH, WIDTH),
                                 "mlp.c_fc": (WIDTH, INNER), "mlp.c_proj": (INNER, WIDTH)}.items():  # fmt: skip
                out |= {f"transformer.h.{i}.{name}.weight": (a, b), f"transformer.h.{i}.{name}.bias": (b,)}
            out |= {f"transformer.h.{i}.{n}.{x}": (WIDTH,) for n in ("ln_1", "ln_2") for x in ("weight", "bias")}
        return out | {f"transformer.ln_f.{x}": (WIDTH,) for x in ("weight", "bias")}
    out = {"model.embed_tokens.weight": (WORDS, WIDTH), "model.norm.weight": (WIDTH,), "lm_head.weight": (WORDS, WIDTH)}
    for i in range(LAYERS):
        h = f"model.layers.{i}."
        for x, n in (("q", HEADS), ("k", GROUPS), ("v", GROUPS)):
            out |= {f"{h}self_attn.{x}_proj.weight": (n * HEAD, WIDTH), f"{h}self_attn.{x}_proj.bias": (n * HEAD,)}
        out |= {f"{h}self_attn.o_proj.weight": (WIDTH, HEADS * HEAD), f"{h}self_attn.q_norm.weight": (HEAD,)}
        out |= {f"{h}{n}_layernorm.weight": (WIDTH,) for n in ("input", "post_attention")}
        if kind == "hf-mixtral":
            moe = f"{h}block_sparse_moe."
            out[f"{moe}gate.weight"] = (EXPERTS, WIDTH)
            for e in range(EXPERTS):
                out |= {f"{moe}experts.{e}.{w}.weight": (INNER, WIDTH) for w in ("w1", "w3")}
                out[f"{moe}experts.{e}.w2.weight"] = (WIDTH, INNER)
        else:
            out |= {f"{h}mlp.{x}_proj.weight": (INNER, WIDTH) for x in ("gate", "up")}
            out[f"{h}mlp.down_proj.weight"] = (WIDTH, INNER)
    return out


def hugging_face(folder: Path, kind: str, *, adam: bool = True, main_weights: bool = False) -> tuple[Whole, Whole]:
    """A folder with random weights, and the state of an optimizer."""
    numbers = np.random.default_rng(0)
    weights = {n: numbers.standard_normal(s).astype(np.float32) for n, s in shapes(kind).items()}
    state: Whole = {}
    for n, w in weights.items() if adam else ():
        state |= {f"{n}.exp_avg": w + 1, f"{n}.exp_avg_sq": w * w, f"{n}.step": np.array(9, np.float32)}
    if main_weights:
        state |= {f"{n}.fp32_param": w for n, w in weights.items()}
        weights = {n: w.astype(ml_dtypes.bfloat16) for n, w in weights.items()}
    write_file(folder / "model.safetensors", weights)
    if state:
        write_file(folder / "optimizer.safetensors", state)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return weights, state


def check_back(folder: Path, weights: Whole, state: Whole) -> None:
    for file, expected in (("model.safetensors", weights), ("optimizer.safetensors", state)):
        found = arrays_of(folder / file) if expected else {}
        assert set(found) == set(expected)
        assert all((found[n].dtype, found[n].shape, found[n].tobytes()) == (v.dtype, v.shape, v.tobytes())
                   for n, v in expected.items())  # fmt: skip
    assert json.loads((folder / "config.json").read_text()) == CONFIG  # so that transformers loads it


@pytest.mark.parametrize("main_weights", [False, True])
@pytest.mark.parametrize("kind", ["hf-llama", "hf-mixtral", "hf-gpt2"])
def test_to_megatron_and_back(kind: str, main_weights: bool, tmp_path: Path) -> None:
    weights, state = hugging_face(tmp_path / "hf", kind, main_weights=main_weights)
    checkpoint.transform(tmp_path / "hf", tmp_path / "m", map=f"{kind}:megatron")
    assert checkpoint.verify(tmp_path / "m") == []
    found = open_checkpoint(tmp_path / "m", None)
    assert found.kind == "megatron"
    assert found.tensors["decoder.layers.self_attention.linear_qkv.weight"].shape[0] == LAYERS
    checkpoint.transform(tmp_path / "m", tmp_path / "back", map=f"megatron:{kind}", config=tmp_path / "hf/config.json")
    check_back(tmp_path / "back", weights, state)


def test_the_fused_matrix_lies_as_megatron_has_it(tmp_path: Path) -> None:
    """[for each group of heads: its queries, its key, its value], by numpy."""
    weights, _ = hugging_face(tmp_path / "hf", "hf-llama", adam=False)
    checkpoint.transform(tmp_path / "hf", tmp_path / "m", map="hf-llama:megatron")
    checkpoint.transform(tmp_path / "m", tmp_path / "m.npz")
    found = arrays_of(tmp_path / "m.npz")["decoder.layers.self_attention.linear_qkv.weight"]
    for i in range(LAYERS):
        parts = [weights[f"model.layers.{i}.self_attn.{x}_proj.weight"].reshape(GROUPS, -1, WIDTH) for x in "qkv"]
        np.testing.assert_array_equal(found[i], np.concatenate(parts, axis=1).reshape(-1, WIDTH))


@pytest.mark.parametrize("apart", [False, True])
def test_layers_with_numbers_and_gates_apart_are_read(apart: bool, tmp_path: Path) -> None:
    """As Megatron saves them with non_homogeneous_layers, and with singleton_local_shards."""
    weights, _ = hugging_face(tmp_path / "hf", "hf-mixtral", adam=False)
    checkpoint.transform(tmp_path / "hf", tmp_path / "m", map="hf-mixtral:megatron")
    checkpoint.transform(tmp_path / "m", tmp_path / "m.npz")
    numbered: Whole = {}
    for name, value in arrays_of(tmp_path / "m.npz").items():
        front, layered, rest = name.partition("decoder.layers.")
        if not layered:
            numbered[name] = value
            continue
        for i, of_layer in enumerate(value):
            new = f"{front}{layered}{i}.{rest}"
            if not apart or "experts.experts." not in new:
                numbered[new] = of_layer
                continue
            for e, of_expert in enumerate(of_layer):
                one = new.replace("experts.experts.", f"experts.experts.{e}.")
                halves = np.split(of_expert, 2) if "fc1" in one else [of_expert]
                numbered |= dict(zip([f"{one}_w", f"{one}_v"] if len(halves) > 1 else [one], halves, strict=True))
    write_file(tmp_path / "n.npz", numbered)
    checkpoint.transform(tmp_path / "n.npz", tmp_path / "n", format="megatron")
    checkpoint.transform(
        tmp_path / "n", tmp_path / "back", map="megatron:hf-mixtral", config=tmp_path / "hf/config.json"
    )
    check_back(tmp_path / "back", weights, {})


def test_names_that_optimizers_ask_for_mean_one_tensor(tmp_path: Path) -> None:
    """Weights in fp32 lie once under both names, and a model in fp32 has none beside its weights."""
    for main_weights in (False, True):
        folder = tmp_path / f"m{main_weights}"
        hugging_face(tmp_path / f"hf{main_weights}", "hf-llama", main_weights=main_weights)
        checkpoint.transform(tmp_path / f"hf{main_weights}", folder, map="hf-llama:megatron")
        about = read_pickle((folder / ".metadata").read_bytes())
        assert isinstance(about, Call)
        names = set(about.state["state_dict_metadata"])
        for slot in ("param", "fp32_param"):
            assert f"optimizer.state.{slot}.output_layer.weight" in names
        slots = {t.slot for t in open_checkpoint(folder, None).said.values() if t.parameter == "output_layer.weight"}
        assert slots == {"", "exp_avg", "exp_avg_sq"} | ({"fp32_param"} if main_weights else set())


def test_one_command_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights, state = hugging_face(tmp_path / "hf", "hf-llama")
    there = ["checkpoint", "transform", str(tmp_path / "hf"), str(tmp_path / "m")]
    assert main([*there, "--map", "hf-llama:megatron"]) == 0
    assert "(megatron)" in capsys.readouterr().out
    back = ["checkpoint", "transform", str(tmp_path / "m"), str(tmp_path / "back")]
    assert main([*back, "--map", "megatron:hf-llama", "--config", str(tmp_path / "hf/config.json")]) == 0
    assert "common.iteration" in capsys.readouterr().out  # what is left out is said
    check_back(tmp_path / "back", weights, state)
    assert main(["checkpoint", "inspect", str(tmp_path / "m")]) == 0
    assert "megatron" in capsys.readouterr().out


def test_rows_that_pad_a_vocabulary_are_cut_and_said(tmp_path: Path) -> None:
    weights, state = hugging_face(tmp_path / "hf", "hf-llama")
    checkpoint.transform(tmp_path / "hf", tmp_path / "m", map="hf-llama:megatron")
    padded = {n: {"name": n, "padded": 16} for n in ("embedding.word_embeddings.weight", "output_layer.weight")}
    checkpoint.transform(tmp_path / "m", tmp_path / "p", map=padded)
    done = checkpoint.transform(
        tmp_path / "p", tmp_path / "b", map="megatron:hf-llama", config=tmp_path / "hf/config.json"
    )
    check_back(tmp_path / "b", weights, state)
    assert "output_layer.weight (10:16 of dimension 0)" in done.skipped
    assert "optimizer.state.exp_avg.output_layer.weight (10:16 of dimension 0)" in done.skipped


def changed(folder: Path, names: Mapping[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | dict(names)))


@pytest.mark.parametrize(("config", "message"), [
    ({"num_hidden_layers": 4}, "expected 4, as config.json says, found 3"),
    ({"num_key_value_heads": 3}, "3 groups"),
    ({"num_hidden_layers": "many"}, "found num_hidden_layers: 'many'"),
    ({"vocab_size": 0}, "found vocab_size: 0"),
])  # fmt: skip
def test_sizes_that_are_not_those_of_the_model_are_refused(
    config: dict[str, Any], message: str, tmp_path: Path
) -> None:  # fmt: skip
    hugging_face(tmp_path / "hf", "hf-llama")
    changed(tmp_path / "hf", config)
    with pytest.raises(InputError, match=message):
        checkpoint.transform(tmp_path / "hf", tmp_path / "m", map="hf-llama:megatron")


@pytest.mark.parametrize(("config", "message"), [
    ({"num_hidden_layers": 4}, "expected 4 layers, as config.json says, found"),
    ({"vocab_size": 11}, "expected at least 11 rows"),
    ({"num_key_value_heads": 4}, "expected parts that make"),
    ({"intermediate_size": 5}, "expected parts that make 12, found"),
])  # fmt: skip
def test_sizes_are_looked_at_on_the_way_back(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    hugging_face(tmp_path / "hf", "hf-llama")
    checkpoint.transform(tmp_path / "hf", tmp_path / "m", map="hf-llama:megatron")
    changed(tmp_path / "hf", config)
    with pytest.raises(InputError, match=message):
        checkpoint.transform(
            tmp_path / "m", tmp_path / "b", map="megatron:hf-llama", config=tmp_path / "hf/config.json"
        )
    assert not (tmp_path / "b").exists()


def test_a_model_that_a_mapping_does_not_know_is_refused(tmp_path: Path) -> None:
    weights, _ = hugging_face(tmp_path / "hf", "hf-llama", adam=False)
    more = {f"model.layers.{i}.pre_feedforward_layernorm.weight": np.ones(WIDTH, np.float32) for i in range(LAYERS)}
    write_file(tmp_path / "hf/model.safetensors", weights | more)
    with pytest.raises(InputError, match=r"pre_feedforward_layernorm\.weight, which this mapping does not know"):
        checkpoint.transform(tmp_path / "hf", tmp_path / "m", map="hf-llama:megatron")
    checkpoint.transform(tmp_path / "hf", tmp_path / "m", map="hf-llama:megatron", skip=["*pre_feedforward*"])
    with pytest.raises(InputError, match="which this mapping does not know"):
        checkpoint.transform(tmp_path / "hf", tmp_path / "x", map="hf-gpt2:megatron")
    del weights["model.layers.1.mlp.up_proj.weight"]
    write_file(tmp_path / "hf/model.safetensors", weights)
    with pytest.raises(InputError, match=r"needs 'model\.layers\.1\.mlp\.up_proj\.weight'"):
        checkpoint.transform(tmp_path / "hf", tmp_path / "x", map="hf-llama:megatron")


def test_what_a_mapping_needs_is_said(tmp_path: Path) -> None:
    hugging_face(tmp_path / "hf", "hf-llama")
    with pytest.raises(UsageError, match=r"expected a file, or one of hf-llama:megatron"):
        checkpoint.transform(tmp_path / "hf", tmp_path / "m", map="hf-lama:megatron")
    config = tmp_path / "hf/config.json"
    with pytest.raises(OptionError, match="config: goes with the name of a known mapping"):
        checkpoint.transform(tmp_path / "hf", tmp_path / "m", map={}, config=config)
    with pytest.raises(UsageError, match="goes with --map of a known mapping"):
        checkpoint.transform(tmp_path / "hf", tmp_path / "m", config=config)
    (tmp_path / "hf/config.json").unlink()
    with pytest.raises(InputError, match=r"give the model's config\.json with --config"):
        checkpoint.transform(tmp_path / "hf", tmp_path / "m", map="hf-llama:megatron")
    assert len(MAPS) == 6


@pytest.mark.parametrize(("names", "message"), [
    (["optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_x.bucket_idx_0.exp_avg"], "in the buckets of its ranks"),
    (["optimizer.state.exp_avg.w"], "flattened, as before Megatron-core 0.14"),
])  # fmt: skip
def test_a_state_that_belongs_to_its_ranks_is_refused(names: list[str], message: str, tmp_path: Path) -> None:
    write_file(tmp_path / "a.npz", {"w": np.ones((2, 3)), **{n: np.ones((1, 1, 6)) for n in names}})
    checkpoint.transform(tmp_path / "a.npz", tmp_path / "m", format="megatron")
    with pytest.raises(InputError, match=message):
        checkpoint.transform(tmp_path / "m", tmp_path / "b.npz")
    checkpoint.transform(tmp_path / "m", tmp_path / "b.npz", skip=["optimizer.*"])
    assert set(arrays_of(tmp_path / "b.npz")) == {"w"}


def test_counts_that_differ_cannot_become_megatrons(tmp_path: Path) -> None:
    state = {"a.exp_avg": np.ones(2), "a.step": np.array(1.0), "b.exp_avg": np.ones(2), "b.step": np.array(2.0)}
    write_file(tmp_path / "a.npz", {"a": np.ones(2), "b": np.ones(2), **state})
    with pytest.raises(InputError, match="Megatron counts the updates of all parameters once"):
        checkpoint.transform(tmp_path / "a.npz", tmp_path / "m", format="megatron")


@pytest.mark.parametrize(("file", "data", "message"), [
    ("metadata.json", b"{", "expected what Megatron writes there"),
    ("metadata.json", b"\xff\xfe", "expected what Megatron writes there"),
    ("metadata.json", b"[" * 100_000, "expected what Megatron writes there"),
    ("common.pt", b"no zip file", "expected a file that torch.save wrote"),
    ("__0_0.distcp", b"", "expected a checkpoint of torch.distributed.checkpoint"),
])  # fmt: skip
def test_files_that_are_not_megatrons_are_refused(file: str, data: bytes, message: str, tmp_path: Path) -> None:
    hugging_face(tmp_path / "hf", "hf-llama")
    checkpoint.transform(tmp_path / "hf", tmp_path / "m", map="hf-llama:megatron")
    (tmp_path / "m" / file).write_bytes(data)
    with pytest.raises(InputError, match=message):
        open_checkpoint(tmp_path / "m", None)


def test_ranks_of_a_plan_and_megatron(tmp_path: Path) -> None:
    """--to and --format megatron do not go together: Megatron divides what it reads itself."""
    from planner.checkpoint.layouts import Layouts, Spread
    from planner.checkpoint.transforming import Options, planned
    from planner.ir import DeviceMesh, Layout

    write_file(tmp_path / "a.npz", {"w": np.ones((2, 3))})
    after = Layouts("b", 2, {"w": Spread(Layout((("x",), ())), DeviceMesh.of(2), (0,), (2, 3))})
    with pytest.raises(UsageError, match="--format megatron and --to"):
        planned(open_checkpoint(tmp_path / "a.npz", None), tmp_path / "m", after, Options(format="megatron"))


def test_every_chunk_is_a_sound_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers lie in chunks, whose checksums are those of zip files; a flipped byte is found."""
    monkeypatch.setattr(megatron, "_SMALL", 0)
    monkeypatch.setattr(megatron, "_CHUNK", 100)
    weights, state = hugging_face(tmp_path / "hf", "hf-mixtral")
    checkpoint.transform(tmp_path / "hf", tmp_path / "m", map="hf-mixtral:megatron", memory=1000)
    about = read_pickle((tmp_path / "m/.metadata").read_bytes())
    assert isinstance(about, Call)
    places = {(i.state["relative_path"], i.state["offset"], i.state["length"])
              for i in about.state["storage_data"].values()}  # fmt: skip
    assert len(places) > 3 * len(weights)
    for path, offset, length in places:
        data = (tmp_path / "m" / path).read_bytes()[offset : offset + length]
        assert zipfile.ZipFile(io.BytesIO(data)).testzip() is None
    checkpoint.transform(tmp_path / "m", tmp_path / "b", map="megatron:hf-mixtral", config=tmp_path / "hf/config.json")
    check_back(tmp_path / "b", weights, state)
    file = tmp_path / "m/__0_0.distcp"
    for at in (file.stat().st_size // 3, file.stat().st_size // 2):
        data = bytearray(file.read_bytes())
        data[at] ^= 1
        file.write_bytes(data)
        assert len(checkpoint.verify(tmp_path / "m")) == 1
        data[at] ^= 1
        file.write_bytes(data)
    assert checkpoint.verify(tmp_path / "m") == []


@pytest.mark.parametrize("count", [1 << 80, -1, float("nan"), float("inf")])
def test_a_count_that_is_no_number_is_refused(count: float, tmp_path: Path) -> None:
    hugging_face(tmp_path / "hf", "hf-llama")
    checkpoint.transform(tmp_path / "hf", tmp_path / "m", map="hf-llama:megatron")
    write_common(tmp_path / "m/common.pt", {"optimizer": {"state": {"common_step": count}}})
    with pytest.raises(InputError, match="expected a count of an optimizer's steps"):
        open_checkpoint(tmp_path / "m", None)


def write_common(file: Path, value: dict[str, Any]) -> None:
    made = saved([], value)
    out = bytearray(made.size)
    for offset, part in made.fixed:
        out[offset : offset + len(part)] = part
    file.write_bytes(out)
