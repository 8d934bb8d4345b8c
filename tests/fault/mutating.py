"""Small changes of bytes, texts, JSON documents and protobuf messages that leave most of their structure as it was."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

__all__ = ["changed_bytes", "changed_json", "changed_message", "changed_text", "varint_changed"]

WHOLE: Final = (0, 1, -1, 2, 3, 4, 7, 8, 16, 127, 128, 255, 256, 65535, 10**6, 10**9, 2**31 - 1, 2**31, -(2**31), 2**32,
                2**53, 2**62, 2**63 - 1, -(2**63))  # fmt: skip
FLOATS: Final = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-9, 1e9, 3e38, 1e308, float("inf"), float("-inf"), float("nan"))
TEXTS: Final = ("", " ", "x", "x,y", "_", "*", "a=b", "../../etc/passwd", "\x1b[31m", "\u202e", "é", "\U0001f600", "0",
                "-1", "1e999", "nan", "true", "null", "None", "[]", "{}", "%s", "a" * 300, "\ud7ff", "\t", "float32",
                "split:b0", "[x,_]", "2x2", "batch=8", "rest")  # fmt: skip
OTHERS: Final = (None, True, False, [], {}, [[]], [None], {"": None}, *WHOLE, *FLOATS, *TEXTS)
KEPT_ON: Final = 0.85  # the chance of going one level deeper, where there is one
_TOKEN: Final = re.compile(r"\d+(?:\.\d+)?|\w+|[^\w\s]")


def changed_bytes(data: bytes, rng: random.Random) -> bytes:
    """Bytes that are set, taken out, put in or repeated, and now and then a tail that is missing."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(8):
            case 0 | 1 if at < len(out):
                out[at] = rng.randrange(256)
            case 2 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 3:
                del out[at : at + rng.randint(1, 9)]
            case 4:
                out[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 9)))
            case 5:
                out[at:at] = out[at : at + rng.randint(1, 60)]
            case 6 if rng.random() < 0.1:
                del out[at:]
            case _:
                out = bytearray(varint_changed(bytes(out), rng))
    return bytes(out)


def varint_changed(data: bytes, rng: random.Random) -> bytes:
    """A number of the wire format in place of the bytes somewhere: lengths, tags and sizes among them."""
    number = rng.choice(WHOLE) % (1 << 64)
    wire = bytearray()
    while number > 127:
        wire.append(number & 127 | 128)
        number >>= 7
    wire.append(number)
    at = rng.randrange(len(data) + 1)
    return data[:at] + bytes(wire) + data[at + rng.randint(0, 2) :]


def changed_text(text: str, rng: random.Random) -> str:
    """Lines or words that are taken out, repeated, exchanged or replaced."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        if rng.random() < 0.3 and "\n" in text:
            lines = text.split("\n")
            a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
            match rng.randrange(3):
                case 0:
                    del lines[a]
                case 1:
                    lines.insert(b, lines[a])
                case _:
                    lines[a], lines[b] = lines[b], lines[a]
            text = "\n".join(lines)
            continue
        words = list(_TOKEN.finditer(text))
        if not words:
            return text + rng.choice(TEXTS)
        word, other = rng.choice(words), rng.choice(words)
        fresh = (other[0], str(rng.choice(WHOLE)), repr(rng.choice(FLOATS)), rng.choice(TEXTS), "", word[0] * 2)
        text = text[: word.start()] + rng.choice(fresh) + text[word.end() :]
    return text


def changed_json(document: Any, rng: random.Random) -> Any:
    """A copy in which one to four values are another, missing, repeated or exchanged."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        document = _change_value(document, rng)
    return document


def _change_value(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict) and value and rng.random() < KEPT_ON:
        key = rng.choice(list(value))
        match rng.randrange(12):
            case 0:
                del value[key]
            case 1:
                value[rng.choice(TEXTS)] = value.pop(key)
            case 2:
                value[key] = copy.deepcopy(rng.choice(list(value.values())))
            case _:
                value[key] = _change_value(value[key], rng)
        return value
    if isinstance(value, list) and value and rng.random() < KEPT_ON:
        k = rng.randrange(len(value))
        match rng.randrange(8):
            case 0:
                del value[k]
            case 1:
                value.insert(k, copy.deepcopy(rng.choice(value)))
            case 2:
                j = rng.randrange(len(value))
                value[j], value[k] = value[k], value[j]
            case _:
                value[k] = _change_value(value[k], rng)
        return value
    return _another(value, rng)


def _another(value: Any, rng: random.Random) -> Any:
    """Most often one of the same type."""
    if rng.random() < 0.2:
        return copy.deepcopy(rng.choice(OTHERS))
    match value:
        case bool():
            return not value
        case int():
            return rng.choice((*WHOLE, value + 1, value - 1, value * 2, -value, float(value)))
        case float():
            return rng.choice((*FLOATS, value * 2, -value, value / 3))
        case str():
            return changed_text(value, rng) if rng.random() < 0.6 else rng.choice(TEXTS)
        case _:
            return copy.deepcopy(rng.choice(OTHERS))


def json_bytes(document: Any) -> bytes:
    """The document as a file; numbers that JSON does not have are written as Python writes them."""
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")


def changed_message(message: Message, rng: random.Random, names: Sequence[str]) -> None:
    """One field somewhere below, changed in place; `names` are texts that mean something elsewhere in the message."""
    set_fields = message.ListFields()
    if not set_fields:
        _change_field(message, rng.choice(message.DESCRIPTOR.fields), rng, names)
        return
    field, value = rng.choice(set_fields)
    if field.type == FieldDescriptor.TYPE_MESSAGE and rng.random() < KEPT_ON:
        changed_message(rng.choice(value) if field.is_repeated else value, rng, names)
        return
    if rng.random() < 0.1:
        field = rng.choice(message.DESCRIPTOR.fields)
    _change_field(message, field, rng, names)


def _change_field(message: Message, field: FieldDescriptor, rng: random.Random, names: Sequence[str]) -> None:
    try:
        if field.is_repeated:
            _change_list(getattr(message, field.name), field, rng, names)
        elif rng.random() < 0.1:
            message.ClearField(field.name)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            getattr(message, field.name).SetInParent()
        else:
            setattr(message, field.name, _scalar(field, getattr(message, field.name), rng, names))
    except (ValueError, TypeError, OverflowError):  # a value that the field cannot hold: the message stays as it is
        return


def _change_list(values: Any, field: FieldDescriptor, rng: random.Random, names: Sequence[str]) -> None:
    inner = field.type == FieldDescriptor.TYPE_MESSAGE
    if not values:
        values.add() if inner else values.append(_scalar(field, None, rng, names))
        return
    k = rng.randrange(len(values))
    match rng.randrange(6):
        case 0:
            del values[k]
        case 1:
            values.append(values[k])
        case 2:
            j = rng.randrange(len(values))
            kept = [copy.deepcopy(v) for v in values] if inner else list(values)
            kept[j], kept[k] = kept[k], kept[j]
            del values[:]
            values.extend(kept)
        case 3 if rng.random() < 0.2:
            del values[:]
        case 4 if inner and rng.random() < 0.2:
            values.add()
        case _ if inner:
            changed_message(values[k], rng, names)
        case _:
            values[k] = _scalar(field, values[k], rng, names)


def _scalar(field: FieldDescriptor, value: Any, rng: random.Random, names: Sequence[str]) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return changed_bytes(value or bytes(8), rng)
        case FieldDescriptor.CPPTYPE_STRING:
            return rng.choice(names) if names and rng.random() < 0.8 else rng.choice(TEXTS)
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return rng.choice(FLOATS)
        case FieldDescriptor.CPPTYPE_ENUM:
            return rng.choice([v.number for v in field.enum_type.values])
        case FieldDescriptor.CPPTYPE_BOOL:
            return not value
        case _ if value and rng.random() < 0.5:
            return value + rng.choice((1, -1, value, 2))
        case _ if rng.random() < 0.5:
            return rng.randrange(30)  # element types, axes and sizes are small
        case _:
            return rng.choice(WHOLE)
