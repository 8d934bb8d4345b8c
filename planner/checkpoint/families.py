"""Mappings that are known by name: models of Hugging Face and of Megatron-core.

    --map hf-llama:megatron    Llama, Mistral, Qwen2, Qwen3 and others with their names → Megatron's
    --map megatron:hf-llama    and back; hf-gpt2 and hf-mixtral alike

Sizes are those of a Hugging Face `config.json`.  A tensor that a mapping does not know is an error, since another model
would come out.
Sources: megatron/core/models/gpt/gpt_layer_specs.py and megatron/core/transformer/{attention,mlp,moe/experts}.py of
Megatron-core 0.16.1; the models' modules in transformers 5.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from planner.checkpoint.rules import Leaf, Rule, read_rules
from planner.checkpoint.source import Checkpoint
from planner.checkpoint.wording import listed
from planner.errors import InputError, UsageError

__all__ = ["MAPS", "Mapped", "Sizes", "mapped", "read_sizes", "rules_named"]

_LONGEST: Final = 1 << 24  # bytes of a config.json
_CONFIG: Final = "config.json"
_LAYERS: Final = "decoder.layers."
_BUFFERS: Final = ("*.rotary_emb.inv_freq", "*.attn.bias", "*.attn.masked_bias")  # of Hugging Face, which it makes anew


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a model, as its `config.json` says."""

    layers: int
    heads: int
    key_value_heads: int
    head: int
    hidden: int
    inner: int
    vocabulary: int
    experts: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of Megatron, and those of Hugging Face that it is made of; with `#` in their names it stacks them.

    `sizes`, `groups`: how they lie in it along dimension 0.  `grouped`: the one tensor has parts behind each other,
    (sizes, groups), which lie group by group in Megatron's.  `words`: whether it has a row for each word.  `other`:
    what Megatron may call it as well.
    """

    whole: str
    leaves: tuple[str, ...]
    sizes: tuple[int, ...] = ()
    groups: int = 1
    transposed: bool = False
    grouped: tuple[tuple[int, ...], int] | None = None
    words: bool = False
    other: str = ""


def _outside(s: Sizes, embedding: str, norm: str) -> list[Entry]:
    return [
        Entry("embedding.word_embeddings.weight", (embedding,), words=True),
        *(Entry(f"decoder.final_layernorm.{x}", (f"{norm}.{x}",)) for x in ("weight", "bias")),
        Entry("output_layer.weight", ("lm_head.weight",), words=True),
    ]  # fmt: skip


def _attention(s: Sizes) -> list[Entry]:
    h, out = "model.layers.#.", f"{_LAYERS}self_attention."
    rows = (s.heads * s.head, s.key_value_heads * s.head, s.key_value_heads * s.head)
    found = [
        Entry(f"{out}linear_qkv.{x}", tuple(f"{h}self_attn.{p}_proj.{x}" for p in "qkv"), rows, s.key_value_heads)
        for x in ("weight", "bias")
    ]
    found += [Entry(f"{out}linear_proj.{x}", (f"{h}self_attn.o_proj.{x}",)) for x in ("weight", "bias")]
    found += [Entry(f"{out}{p}_layernorm.weight", (f"{h}self_attn.{p}_norm.weight",)) for p in "qk"]
    return [*found, Entry(f"{out}linear_qkv.layer_norm_weight", (f"{h}input_layernorm.weight",))]


def _llama(s: Sizes) -> list[Entry]:
    h, out = "model.layers.#.", f"{_LAYERS}mlp."
    return [
        *_outside(s, "model.embed_tokens.weight", "model.norm"),
        *_attention(s),
        Entry(f"{out}linear_fc1.layer_norm_weight", (f"{h}post_attention_layernorm.weight",)),
        *(Entry(f"{out}linear_fc1.{x}", (f"{h}mlp.gate_proj.{x}", f"{h}mlp.up_proj.{x}"), (s.inner, s.inner))
          for x in ("weight", "bias")),
        *(Entry(f"{out}linear_fc2.{x}", (f"{h}mlp.down_proj.{x}",)) for x in ("weight", "bias")),
    ]  # fmt: skip


def _mixtral(s: Sizes) -> list[Entry]:
    h, out = "model.layers.#.block_sparse_moe.", f"{_LAYERS}mlp."
    return [
        *_outside(s, "model.embed_tokens.weight", "model.norm"),
        *_attention(s),
        Entry(f"{_LAYERS}pre_mlp_layernorm.weight", ("model.layers.#.post_attention_layernorm.weight",),
              other=f"{out}linear_fc1.layer_norm_weight"),
        Entry(f"{out}router.weight", (f"{h}gate.weight",)),
        Entry(f"{out}experts.experts.linear_fc1.weight", (f"{h}experts.#.w1.weight", f"{h}experts.#.w3.weight"),
              (s.inner, s.inner)),
        Entry(f"{out}experts.experts.linear_fc2.weight", (f"{h}experts.#.w2.weight",)),
    ]  # fmt: skip


def _gpt2(s: Sizes, front: str) -> list[Entry]:
    h, qkv = f"{front}h.#.", ((s.hidden,) * 3, s.heads)
    attention, mlp = f"{_LAYERS}self_attention.", f"{_LAYERS}mlp."
    found = [*_outside(s, f"{front}wte.weight", f"{front}ln_f"),
             Entry("embedding.position_embeddings.weight", (f"{front}wpe.weight",))]  # fmt: skip
    for x, turned in (("weight", True), ("bias", False)):  # Conv1D has its weights the other way round
        found += [
            Entry(f"{attention}linear_qkv.layer_norm_{x}", (f"{h}ln_1.{x}",)),
            Entry(f"{attention}linear_qkv.{x}", (f"{h}attn.c_attn.{x}",), transposed=turned, grouped=qkv),
            Entry(f"{attention}linear_proj.{x}", (f"{h}attn.c_proj.{x}",), transposed=turned),
            Entry(f"{mlp}linear_fc1.layer_norm_{x}", (f"{h}ln_2.{x}",)),
            Entry(f"{mlp}linear_fc1.{x}", (f"{h}mlp.c_fc.{x}",), transposed=turned),
            Entry(f"{mlp}linear_fc2.{x}", (f"{h}mlp.c_proj.{x}",), transposed=turned),
        ]
    return found


def _gpt2_there(s: Sizes, names: Iterable[str]) -> list[Entry]:
    return _gpt2(s, "transformer." if "transformer.wte.weight" in names else "")


def _gpt2_back(s: Sizes, names: Iterable[str]) -> list[Entry]:
    return _gpt2(s, "transformer.")


@dataclass(frozen=True, slots=True)
class Mapped:
    """`beside`: files of the target that the mapping knows, by name; `format`: that it makes names of."""

    rules: tuple[Rule, ...] = ()
    beside: tuple[tuple[str, bytes], ...] = ()
    format: str = ""

    def format_of(self, place: Path, divided: bool) -> str:
        """Of a target there, if nothing else says it: neither layouts nor its ending."""
        return "" if divided or place.suffix else self.format


def mapped(given: str | None, config: Path | None, source: Checkpoint, skip: Sequence[str] = ()) -> Mapped:
    """What `--map` says, a file or one of `MAPS`, with the sizes of `config`: by default the source's `config.json`.

    Raises:
        InputError: the file is no map, or the mapping does not fit the source.
        UsageError: there is no such mapping; `config` is given beside a file.
    """
    named = given is not None and given not in MAPS and (":" not in given or Path(given).exists())
    if given is None or named:
        if config is not None:
            raise UsageError(f"--config {config}: goes with --map of a known mapping: {', '.join(MAPS)}")
        return Mapped(read_rules(Path(given)) if given is not None else ())
    folder = source.place if source.place.is_dir() else source.place.parent
    file = config or folder / _CONFIG
    rules = rules_named(given, source, read_sizes(file), skip)
    if given.endswith(":megatron"):
        return Mapped(rules, (), "megatron")
    return Mapped(rules, ((_CONFIG, file.read_bytes()),), "huggingface")


Family = Callable[[Sizes, Iterable[str]], list[Entry]]
_FAMILIES: Final[Mapping[str, tuple[Family, Family]]] = {
    "hf-llama": (lambda s, _: _llama(s), lambda s, _: _llama(s)),
    "hf-mixtral": (lambda s, _: _mixtral(s), lambda s, _: _mixtral(s)),
    "hf-gpt2": (_gpt2_there, _gpt2_back),
}
MAPS: Final = tuple(f"{a}:{b}" for f in _FAMILIES for a, b in ((f, "megatron"), ("megatron", f)))


def rules_named(name: str, source: Checkpoint, sizes: Sizes, skip: Sequence[str] = ()) -> tuple[Rule, ...]:
    """Of one of `MAPS`, for a checkpoint; `skip`: patterns of names that it does not have to know.

    Raises:
        InputError: it has a tensor that the mapping does not know, lacks one, or is of other sizes.
        UsageError: there is no such mapping.
    """
    if name not in MAPS:
        raise UsageError(f"--map {name}: expected a file, or one of {', '.join(MAPS)}")
    before, _, after = name.partition(":")
    shapes = {t.parameter or n: source.tensors[n].shape for n, t in source.said.items() if not t.slot}
    if after == "megatron":
        entries = _FAMILIES[before][0](sizes, shapes)
        rules = [r for e in entries if (r := _there(e, shapes, sizes)) is not None]
    else:
        entries = _FAMILIES[after][1](sizes, shapes)
        entries += [replace(e, whole=e.other) for e in entries if e.other]
        rules = [r for e in entries for r in _back(e, shapes, sizes)]
    known = {s for r in rules for s in r.sources}
    counted = {re.sub(r"(?<=\.)\d+(?=\.)", "#", n): n for n in shapes if n not in known}
    unknown = [n for p, n in counted.items() if p not in known and n != "global_step"
               and not any(fnmatch.fnmatchcase(n, x) for x in (*_BUFFERS, *skip))]  # fmt: skip
    if not rules or unknown:
        raise InputError(f"--map {name}: {source.place}: has {listed(unknown)}, which this mapping does not know; give "
                         "one for this model, or a file")  # fmt: skip
    return tuple(rules)


def _there(e: Entry, shapes: Mapping[str, tuple[int, ...]], sizes: Sizes) -> Rule | None:
    """None where the source has nothing of it."""
    first = e.leaves[0]
    if first.replace("#", "0") not in shapes:
        return None
    layers = {n for n in shapes if re.fullmatch(re.escape(first).replace(r"\#", r"(\d+)"), n)} if "#" in first else ()
    expected = sizes.layers * (sizes.experts if first.count("#") > 1 else 1)
    if "#" in first and len(layers) != expected:
        raise InputError(
            f"{first}: expected {expected}, as config.json says, found {len(layers)}; give that of this model"
        )
    return Rule(e.whole, tuple(Leaf(n, e.transposed, grouped=e.grouped) for n in e.leaves), groups=e.groups)


def _back(e: Entry, shapes: Mapping[str, tuple[int, ...]], sizes: Sizes) -> list[Rule]:
    """Of the tensor, or of those of layers by number, and of those of gates and the rest apart."""
    dim = 1 if e.transposed else 0
    rows = shapes.get(e.whole, (0,))[0] if e.words else 0
    cut = sizes.vocabulary if rows > sizes.vocabulary else 0
    leaves = tuple(Leaf(n, e.transposed, dim, cut=cut, ungrouped=e.grouped) for n in e.leaves)
    if e.whole in shapes:
        found = shapes[e.whole][:1]
        if "#" in e.leaves[0] and found != (sizes.layers,):
            raise InputError(f"{e.whole}: expected {sizes.layers} layers, as config.json says, found {list(found)}; "
                             "give that of this model")  # fmt: skip
        if rows and rows < sizes.vocabulary:
            raise InputError(f"{e.whole}: expected at least {sizes.vocabulary} rows, the vocabulary that config.json "
                             f"says, found {rows}; give that of this model")  # fmt: skip
        return [Rule(e.whole, leaves, True, 0, e.groups, e.sizes)]
    if "#" not in e.leaves[0]:
        return []
    out = []
    pattern = re.escape(e.whole).replace(re.escape(_LAYERS), re.escape(_LAYERS) + r"(\d+)\.")
    for part in ("", "_w", "_v") if len(e.sizes) == 2 else ("",):
        for name in shapes:
            m = re.fullmatch(pattern.replace(r"experts\.experts\.", r"experts\.experts\.(?:(\d+)\.)?") + part, name)
            if m is None:
                continue
            own = leaves if not part else leaves[:1] if part == "_w" else leaves[1:]
            numbered = tuple(_numbered(leaf, [n for n in m.groups() if n is not None]) for leaf in own)
            out.append(Rule(name, numbered, True, 0, e.groups, () if part else e.sizes))
    return out


def _numbered(leaf: Leaf, numbers: Sequence[str]) -> Leaf:
    name = leaf.name
    for n in numbers:
        name = name.replace("#", n, 1)
    return Leaf(name, leaf.transposed, leaf.dim, cut=leaf.cut, ungrouped=leaf.ungrouped)


def read_sizes(file: Path) -> Sizes:
    """Of a `config.json` of Hugging Face.  InputError where it does not say them."""
    try:
        if file.stat().st_size > _LONGEST:
            raise ValueError(f"{file.stat().st_size:,} bytes")
        found = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("no object")
        heads = _size(found, "num_attention_heads", "n_head")
        hidden = _size(found, "hidden_size", "n_embd")
        return Sizes(
            _size(found, "num_hidden_layers", "n_layer"), heads, _size(found, "num_key_value_heads", default=heads),
            _size(found, "head_dim", default=max(1, hidden // heads)), hidden,
            _size(found, "intermediate_size", "n_inner", default=4 * hidden), _size(found, "vocab_size"),
            _size(found, "num_local_experts", default=1),
        )  # fmt: skip
    except OSError as e:
        raise InputError(f"{file}: cannot be read: {e.strerror}; give the model's config.json with --config") from None
    except (ValueError, RecursionError) as e:
        raise InputError(
            f"{file}: expected a config.json of Hugging Face, found {e}; give that of this model"
        ) from None


def _size(config: Mapping[str, Any], *keys: str, default: int = 0) -> int:
    found = next((config[k] for k in keys if config.get(k) is not None), default)
    if type(found) is not int or not 0 < found < 1 << 40:
        raise ValueError(f"{keys[0]}: {found!r:.40}")
    return found
