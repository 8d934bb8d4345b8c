"""The fields of the page's form, made of what a request takes: an option more is a field more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from html import escape
from typing import Any, Final

from pydantic import BaseModel

from planner.api.options import PlanQuery

__all__ = ["with_fields"]

_FIRST: Final = ("devices", "batch", "hardware", "mode", "memory_limit")  # that are not folded away
_UNASKED: Final = ("name", "reproducible", "top_k", "webhook")  # what the page does not offer
_NARROW: Final = '<div class="field">'
_WIDE: Final = '<div class="field wide">'
_PLACES: Final = {"<!-- first fields -->": True, "<!-- further fields -->": False}


@dataclass(frozen=True, slots=True)
class _Words:
    """How the page speaks of an option; what is not said follows from its name and its schema.  `choices`: by value,
    empty for no choice."""

    label: str = ""
    hint: str = ""
    choices: Mapping[str, str] = field(default_factory=dict)
    value: str = ""
    wide: bool = False


_WORDS: Final[Mapping[str, _Words]] = {
    "devices": _Words(value="16"),
    "batch": _Words("Global batch", "the model's"),
    "hardware": _Words(wide=True),
    "mode": _Words(choices={"": "by the model"}),
    "memory_limit": _Words(hint="such as 64GiB"),
    "mesh": _Words(hint="all, or 2x8"),
    "nodes": _Words("Servers", "as needed"),
    "stages": _Words("Pipeline stages"),
    "micro_batches": _Words("Micro-batches", "by the planner"),
    "target": _Words(
        "For",
        choices={
            "any": "any runtime",
            "torch": "PyTorch",
            "dtensor": "PyTorch, by DTensor",
            "huggingface": "Hugging Face transformers",
            "megatron": "Megatron-LM",
            "deepspeed": "DeepSpeed",
            "mindspore": "MindSpore",
            "mindformers": "MindFormers",
            "hyper-parallel": "HyperParallel",
            "onnx": "ONNX annotations",
            "onnx-ranks": "ONNX graphs per rank",
        },
    ),
    "space": _Words(choices={"": "by memory"}),
    "risk": _Words("Rank by", choices={"expected": "expected step", "upper": "upper end of the interval"}),
    "time_limit": _Words("Time limit, s", "none"),
    "strategy": _Words("Known strategy", "megatron:tp=4,pp=2, fsdp, …", wide=True),
    "pin": _Words("Pins, one a line", "*.fc1.* m=x n=y"),
    "bind": _Words("Symbolic sizes, one a line", "sequence=1024"),
}


@cache
def with_fields(page: str, query: type[BaseModel] = PlanQuery) -> str:
    """The page with the fields of a query's parameters in their places."""
    schemas: dict[str, Any] = query.model_json_schema()["properties"]
    names = [*_FIRST, *(name for name in schemas if name not in (*_FIRST, *_UNASKED))]
    for place, first in _PLACES.items():
        fields = [_field(name, schemas[name]) for name in names if (name in _FIRST) == first]
        if not first:
            fields.sort(key=lambda text: text.startswith(_WIDE))
        page = page.replace(place, "\n          ".join(fields))
    return page


def _field(name: str, schema: Mapping[str, Any]) -> str:
    words = _WORDS.get(name, _Words())
    kinds = [k for k in schema.get("anyOf", [schema]) if k.get("type") != "null"]
    kind = {**schema, **kinds[0]}
    wide = words.wide or kind.get("type") == "array"
    label = words.label or name.replace("_", " ").capitalize()
    about = {"id": name, "name": name, "title": schema.get("description", "")}
    control = _control(name, kind, words, about)
    return f'{_WIDE if wide else _NARROW}<label for="{escape(name)}">{escape(label)}</label>{control}</div>'


def _control(name: str, kind: Mapping[str, Any], words: _Words, about: Mapping[str, str]) -> str:
    if name == "hardware":  # whose choices the page asks for, with what they are
        return f'<select{_attributes(about)}></select><small id="hardware-told"></small>'
    if "enum" in kind:
        return f"<select{_attributes(about)}>{''.join(_options(kind, words))}</select>"
    if kind["type"] == "boolean":
        return f"<input{_attributes({**about, 'type': 'checkbox', 'value': 'true'})}>"
    if kind["type"] == "array":
        hint = {"rows": "2", "placeholder": words.hint, "spellcheck": "false"}
        return f"<textarea{_attributes({**about, **hint})}></textarea>"
    hint = {"placeholder": words.hint or str(kind.get("default") or ""), "value": words.value}
    if kind["type"] in ("integer", "number"):
        whole = kind["type"] == "integer"
        limits = {
            "type": "number",
            "min": str(kind.get("minimum", kind.get("exclusiveMinimum", ""))),
            "max": str(kind.get("maximum", "")),
        }
        limits |= {"inputmode": "numeric"} if whole else {"step": "any"}
        return f"<input{_attributes({**about, **limits, **hint})}{' required' if words.value else ''}>"
    return f"<input{_attributes({**about, **hint, 'autocomplete': 'off'})}>"


def _options(kind: Mapping[str, Any], words: _Words) -> Iterator[str]:
    """The default first: what is chosen from the start."""
    default = kind.get("default") or ""
    for value in dict.fromkeys([default, *kind["enum"]]):
        yield f'<option value="{escape(value)}">{escape(words.choices.get(value, value or "by the planner"))}</option>'


def _attributes(given: Mapping[str, str]) -> str:
    return "".join(f' {name}="{escape(text)}"' for name, text in given.items() if text)
