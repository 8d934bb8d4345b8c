"""Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html), from bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from planner.api.client.values import Event

__all__ = ["read_events"]

_END = re.compile(rb"\r\n|\n|\r(?!$)")  # a CR at the end may be half of a line's end
MOST_BYTES = 16 << 20  # of one line


def read_events(chunks: Iterable[bytes]) -> Iterator[Event | None]:
    """The events of a stream, None for a comment, which is a sign of life.

    Data that is no JSON object stands under `text`; what was begun when the stream ends is lost.
    """
    kind, data, last = "message", list[str](), ""
    for raw in _lines(chunks):
        line = raw.decode("utf-8", "replace")
        if not line:
            if data:
                yield Event(last, kind, _object("\n".join(data)))
            kind, data = "message", []
            continue
        name, _, value = line.removeprefix("\ufeff").partition(":")
        if not name:
            yield None
            continue
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "event":
            kind = value
        elif name == "id" and "\0" not in value:
            last = value


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *whole, rest = _END.split(rest + chunk)
        yield from whole
        if len(rest) > MOST_BYTES:
            raise ValueError(f"a line of an event stream is longer than {MOST_BYTES} bytes")
    if rest.endswith(b"\r"):
        yield rest[:-1]


def _object(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        found = text
    return found if isinstance(found, dict) else {"text": found}
