"""The store's statements in the words of PostgreSQL, and its rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

from psycopg import Cursor

__all__ = ["Named", "named_rows", "translated"]

# Texts are passed over; `::` is a cast and no name.
_TOKENS: Final = re.compile(r"('(?:[^']|'')*')|(::)|(\?)|:([a-z_]+)|\s*\bINDEXED BY \w+")


@cache
def translated(statement: str) -> str:
    """With `%s` for `?` and `%(name)s` for `:name`, and without SQLite's hints."""

    def token(found: re.Match[str]) -> str:
        text, cast, mark, name = found.groups()
        if text or cast:
            return text or cast
        if mark:
            return "%s"
        return f"%({name})s" if name else ""

    return _TOKENS.sub(token, statement.replace("%", "%%"))


class Named(tuple[Any, ...]):
    """A row: values by number, or by the name of their column."""

    columns: dict[str, int]

    def __getitem__(self, column: Any, /) -> Any:
        return tuple.__getitem__(self, self.columns[column] if isinstance(column, str) else column)


def named_rows(cursor: Cursor[Any]) -> Callable[[Sequence[Any]], Named]:
    """A row factory of psycopg."""
    description = cursor.description or ()
    return _kind(tuple(column.name for column in description))


@cache
def _kind(names: tuple[str, ...]) -> Callable[[Sequence[Any]], Named]:
    """A type of rows for these columns; there are as many as statements."""
    return type("Row", (Named,), {"columns": {name: k for k, name in enumerate(names)}})
