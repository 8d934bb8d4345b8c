"""The table of all operators: `planner/rules/operators.json` and docs/operators.md, written from the proof.

python -m tests.rules.catalogue --write
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import onnx
import onnxruntime

from planner.rules import opaque_reason, registered_types
from tests.rules.proof import OperatorProof, Proof, prove_everything
from tests.rules.reasons import reason_for

__all__ = ["DOCUMENT", "TABLE", "document", "share_missing", "table", "versions"]

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "planner" / "rules" / "operators.json"
DOCUMENT = ROOT / "docs" / "operators.md"


def versions() -> dict[str, str]:
    """What the figures depend on."""
    return {"onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__}


def share_missing(proof: Proof) -> float:
    """Right assignments over one axis that are not offered, among all that were found right."""
    return len(proof.missing) / max(1, len(proof.missing) + proof.offered)


_PAGE = """\
# Operators

This page is the table of all operators that the planner can split, for readers who want to know whether an operator of
their model is among them, and how that was tested.

It lists every operator type that has a sharding rule, what it can split, and how that was proved. Each strategy is
executed on virtual devices, with operands cut up as it says (pending sums in unequal random terms). Results and
gradients put together must be the whole operator's, and collectives inside an operator must carry the bytes that its
rule declares. Every assignment over one mesh axis that is *not* offered is executed as well, and is listed below when
it gives the right numbers.

The page is written by `python -m tests.rules.catalogue --write` with onnx {onnx} and onnxruntime {onnxruntime}; the
suite repeats the proof and fails when this page is stale. `planner inspect --operators` lists the rules,
`planner inspect MODEL --operators` those of a model, bound to its shapes.

| | |
|---|---|
{summary}

## Rules

Rules are bound to shapes and attributes; shown is the notation met most often (its grammar is in
`planner/rules/notation.py`). *Splits* are the factors that a mesh axis may split in some case; `+0` means that pending
sums of operand group 0 pass through, `^d` and `s&t` are further modes of splitting. *Cases* are nodes of ONNX's tests,
the same at twice the size, and ours; *runs* are executions forward and backward; *more* counts what was found right and
is not offered.

| operator | rule | splits | cases | runs | more |
|---|---|---|---|---|---|
{rules}

## Opaque

Whole on every rank, for the reason that the rule itself states.

{opaque}

## Right and not offered

| operator | assignments | for instance | reason |
|---|---|---|---|
{missing}

## Skipped

Nodes of ONNX's tests that were not executed.

| operator | nodes | reason |
|---|---|---|
{skipped}
"""


def table(proof: Proof) -> str:
    """operators.json: the rule and the splits of every type."""
    found = sorted((t, p) for t, p in proof.operators.items() if not p.opaque)
    operators = {t: {"rule": _rule(p), "splits": _splits(p)} for t, p in found}
    return json.dumps({"versions": versions(), "operators": operators}, indent=1, ensure_ascii=False) + "\n"


def _rule(proof: OperatorProof) -> str:
    """The most frequent notation; ties by length, then by text, so that equal proofs give equal files."""
    bound = {t: n for t, n in proof.texts.items() if not t.startswith("whole:")} or dict(proof.texts)
    return min(bound, key=lambda t: (-bound[t], len(t), t)) if bound else "no case binds it"


def _splits(proof: OperatorProof) -> list[str]:
    return sorted((r for r in proof.roles if r not in ("_", "d~")), key=lambda r: (r.startswith("+"), r))


def document(proof: Proof) -> str:
    """docs/operators.md."""
    every = sorted(proof.operators.values(), key=lambda p: p.type)
    return _PAGE.format(
        **versions(),
        summary=_rows(_summary(proof)),
        rules=_rows(_rules(every)),
        opaque="\n".join(_opaque()),
        missing=_rows(_missing(every)),
        skipped=_rows([p.type, str(n), reason] for p in every for reason, n in sorted(p.skipped.items())),
    )


def _rows(rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _summary(proof: Proof) -> Iterator[Sequence[str]]:
    every = proof.operators.values()
    skipped = sum(proof.tests_skipped.values())
    nodes, twice, ours = (sum(getattr(p, k) for p in every) for k in ("node_cases", "doubled_cases", "own_cases"))
    share = 100 * share_missing(proof)
    splits, opaque = sum(p.splits for p in every), sum(bool(p.opaque) for p in every)
    yield (
        "ONNX node tests",
        f"{proof.total}: {proof.tests} proved, {proof.tests_in_part} in part, {skipped} skipped (reasons below)",
    )
    yield "cases", f"{nodes} nodes of them, {twice} of them again at twice the size, {ours} of ours"
    yield "executions", f"{sum(p.forward for p in every)} forward, {sum(p.backward for p in every)} backward"
    yield "false rules", str(len(proof.findings))
    yield "right over one axis", f"{proof.offered} offered, {len(proof.missing)} not ({share:.1f} %)"
    yield "operator types met", f"{len(every)}: {splits} can be split, {opaque} are opaque"


def _rules(every: Sequence[OperatorProof]) -> Iterator[Sequence[str]]:
    for p in every:
        if not p.opaque:
            cases = f"{p.node_cases}, {p.doubled_cases}, {p.own_cases}"
            runs = f"{p.forward}, {p.backward}"
            yield p.type, _cell(_rule(p)), _short(_splits(p)), cases, runs, str(len(p.missing) or "")


def _opaque() -> Iterator[str]:
    by_reason: dict[str, list[str]] = {}
    for t in sorted(registered_types()):
        if reason := opaque_reason(t):
            by_reason.setdefault(reason, []).append(t)
    return (f"- {reason}: {', '.join(types)}" for reason, types in sorted(by_reason.items()))


def _missing(every: Sequence[OperatorProof]) -> Iterator[Sequence[str]]:
    for p in every:
        groups: dict[str, list[str]] = {}
        for m in p.missing:
            groups.setdefault(reason_for(p.type, m) or "**none stated**", []).append(m)
        for reason, members in sorted(groups.items()):
            yield p.type, str(len(members)), _cell(members[0].rpartition(": ")[2]), reason


def _cell(text: str) -> str:
    return f"`{text.replace('|', '¦')}`" if text and not text.startswith("whole:") else text


def _short(splits: list[str]) -> str:
    """d0, d1, d2 as d0…2."""
    numbered: dict[str, list[int]] = {}
    out = []
    for s in splits:
        stem = s.rstrip("0123456789")
        if stem != s and not s.startswith("+"):
            numbered.setdefault(stem, []).append(int(s[len(stem) :]))
        else:
            out.append(s)
    ranges = [
        f"{k}{min(v)}…{max(v)}" if len(v) > 2 else ", ".join(f"{k}{i}" for i in sorted(v)) for k, v in numbered.items()
    ]
    return " ".join(sorted(ranges) + out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write both files; else print the page")
    options = parser.parse_args()
    proof = prove_everything()
    if options.write:
        TABLE.write_text(table(proof), encoding="utf-8")
        DOCUMENT.write_text(document(proof), encoding="utf-8")
    print(document(proof) if not options.write else f"{DOCUMENT} and {TABLE} written")


if __name__ == "__main__":
    main()
