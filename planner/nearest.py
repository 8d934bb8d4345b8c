"""Which of the known words somebody may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["did_you_mean", "nearest"]

_LIKE: Final = 0.65  # of 1.0: share of letters in common, as difflib counts it; `tensor` is not `overlap_tensor`


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like this one, whatever its capitals and signs between words; None where none is like it."""
    from difflib import get_close_matches

    words: dict[str, str] = {}
    for k in known:
        words.setdefault(_letters(k), k)
    letters = _letters(word)
    if not letters:
        return None
    if letters in words:
        return words[letters]
    found = get_close_matches(letters, words, n=1, cutoff=_LIKE)
    if not found and len(letters) > 1:  # cut off or carried on: `adamw`, `megatron-core`
        found = [k for k in words if len(k) > 1 and (k.startswith(letters) or letters.startswith(k))][:1]
    return words[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str], before: str = "; ") -> str:
    """`; did you mean search?`, or nothing where no known word is like this one."""
    found = nearest(word, known)
    return "" if found is None else f"{before}did you mean {found}?"


def _letters(word: str) -> str:
    return word.lower().replace("_", "-").strip("-")
