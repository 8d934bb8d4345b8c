"""Rows of figures: light, and a data frame when asked for one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from planner.terminal import plain

if TYPE_CHECKING:
    import pandas  # type: ignore[import-not-found, import-untyped, unused-ignore]

__all__ = ["Table"]

_SHOWN = 20  # rows, in text and in a notebook


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under named columns.  Iteration gives every row as a dict; `table["column"]` is a list of values."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
        return cls(tuple(columns), tuple(tuple(row) for row in rows))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)

    def __getitem__(self, column: str) -> list[Any]:
        """Values of a column.  KeyError where there is none of this name."""
        if column not in self.columns:
            raise KeyError(f"{column!r}: there are {', '.join(self.columns)}")
        at = self.columns.index(column)
        return [row[at] for row in self.rows]

    def sorted(self, column: str, *, descending: bool = True) -> Table:
        """The rows in the order of a column; those without a value come last."""
        values = self[column]
        here = [i for i, v in enumerate(values) if v is not None]
        order = sorted(here, key=lambda i: values[i], reverse=descending)
        return Table(self.columns, tuple(self.rows[i] for i in [*order, *(set(range(len(values))) - set(here))]))

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame of the rows.  ImportError where pandas is not installed, which nothing else here needs."""
        import pandas

        return pandas.DataFrame(list(self.rows), columns=list(self.columns))

    def __repr__(self) -> str:
        shown = [[plain(_text(v)) for v in row] for row in self.rows[:_SHOWN]]
        widths = [max([len(c), *(len(row[i]) for row in shown)]) for i, c in enumerate(self.columns)]
        lines = [
            "  ".join(f"{c:{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in [self.columns, *shown]
        ]
        if len(self.rows) > _SHOWN:
            lines.append(f"… {len(self.rows)} rows")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(c)}</th>" for c in self.columns)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(plain(_text(v)))}</td>' for v in row)}</tr>" for row in self.rows[:_SHOWN]
        )
        more = f"<p>{len(self.rows)} rows, of which the first {_SHOWN}</p>" if len(self.rows) > _SHOWN else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
