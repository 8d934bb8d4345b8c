"""Writes the hostile problem files beside this one: `python -m tests.hostile.make_instances`.

Each is the small valid problem of `VALID` with one thing wrong; the name says which, `EXPECTED` what the error has to
name.
"""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "instances"

VALID: dict[str, Any] = {
    "problem": {
        "name": "three nodes",
        "nodes": {
            "intervals": [[0, 2], [1, 3], [2, 4]],
            "costs": [[15, 10], [50, 40, 30], [7]],
            "usages": [[10, 20], [30, 40, 50], [6]],
        },
        "edges": {"nodes": [[0, 1], [1, 2]], "costs": [[1, 2, 3, 4, 5, 6], [7, 8, 10**18]]},
        "usage_limit": 70,
    }
}

Problem = dict[str, Any]


def _set(*path: str | int, to: Any) -> Callable[[Problem], None]:
    def change(problem: Problem) -> None:
        place: Any = problem
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to

    return change


def _drop(*path: str) -> Callable[[Problem], None]:
    def change(problem: Problem) -> None:
        place: Any = problem
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]

    return change


# name: (change of the valid problem, what the error has to name)
CHANGES: dict[str, tuple[Callable[[Problem], None], str]] = {
    "ragged_matrix": (_set("edges", "costs", 0, to=[1, 2, 3, 4, 5]), r"edges.costs\[0\]: expected 6 entries"),
    "matrix_of_other_shape": (_set("edges", "nodes", 1, to=[2, 0]), r"edges.costs\[1\]: expected 2 entries"),
    "nested_matrix": (
        _set("edges", "costs", 0, to=[[1, 2, 3], [4, 5, 6]]),
        r"edges.costs\[0\]: expected a list of int",
    ),
    "negative_cost": (
        _set("nodes", "costs", 1, 1, to=-40),
        r"nodes.costs\[1\]\[1\]: expected an integer of at least 0",
    ),
    "negative_usage": (_set("nodes", "usages", 0, 0, to=-1), r"nodes.usages\[0\]\[0\]: expected"),
    "fractional_cost": (_set("nodes", "costs", 0, 1, to=10.5), r"nodes.costs\[0\]: expected integers"),
    "whole_number_as_float": (_set("nodes", "costs", 0, 1, to=10.0), r"nodes.costs\[0\]: expected integers"),
    "text_for_a_cost": (_set("nodes", "costs", 0, 1, to="10"), r"nodes.costs\[0\]: expected a list of integers"),
    "truth_for_a_cost": (_set("nodes", "costs", 0, 1, to=True), r"nodes.costs\[0\]: expected a list of integers"),
    "null_for_a_cost": (_set("nodes", "costs", 0, to=None), r"nodes.costs\[0\]: expected a list of integers"),
    "huge_cost": (_set("nodes", "costs", 0, 1, to=2**63), r"nodes.costs\[0\]: .*outside 64-bit"),
    "number_of_many_digits": (_set("nodes", "usages", 0, 1, to=10**4000), r"nodes.usages\[0\]: .*outside 64-bit"),
    "node_out_of_range": (_set("edges", "nodes", 0, to=[0, 3]), r"edges.nodes\[0\]: expected nodes below 3"),
    "negative_node": (
        _set("edges", "nodes", 0, to=[0, -1]),
        r"edges.nodes\[0\]\[1\]: expected an integer of at least 0",
    ),
    "self_loop": (_set("edges", "nodes", 0, to=[1, 1]), r"edges.nodes\[0\]: expected two different nodes"),
    "three_ends": (_set("edges", "nodes", 0, to=[0, 1, 2]), r"edges.nodes\[0\]: expected two nodes"),
    "reversed_interval": (_set("nodes", "intervals", 2, to=[4, 2]), r"nodes.intervals\[2\]: expected \[start, end\]"),
    "interval_of_one": (_set("nodes", "intervals", 2, to=[4]), r"nodes.intervals\[2\]: expected \[start, end\]"),
    "no_states": (_set("nodes", "costs", 2, to=[]), r"nodes.costs\[2\]: expected at least one state"),
    "usage_too_short": (_set("nodes", "usages", 1, to=[30]), r"nodes.usages\[1\]: expected 3 entries"),
    "one_usage_less": (_set("nodes", "usages", to=[[10, 20]]), "nodes.usages: expected 3 items"),
    "one_edge_more": (_set("edges", "nodes", to=[[0, 1], [1, 2], [0, 2]]), "edges.costs: expected 3 items"),
    "costs_not_nested": (_set("nodes", "costs", to=[1, 2, 3]), "nodes.costs: expected a list of lists"),
    "limit_as_text": (_set("usage_limit", to="70"), "usage_limit: expected bytes"),
    "negative_limit": (_set("usage_limit", to=-1), "usage_limit: expected bytes"),
    "no_limit": (_drop("usage_limit"), "problem: expected the key 'usage_limit'"),
    "no_edges": (_drop("edges"), "problem: expected the key 'edges'"),
    "misspelt_key": (_set("edges", "usage", to=[None, None]), "problem.edges: expected no keys beyond"),
    "nodes_as_list": (_set("nodes", to=[]), "problem.nodes: expected an object"),
}

GOOD = json.dumps(VALID).encode()

# name: (bytes, what the error has to name)
RAW: dict[str, tuple[bytes, str]] = {
    "empty.json": (b"", "not JSON"),
    "text.json": (b"hello\n", "not JSON"),
    "number.json": (b"17", "the document: expected an object"),
    "list.json": (b"[[1,2],[3]]", "the document: expected an object"),
    "cut_short.json": (GOOD[:150], "not JSON"),
    "nan.json": (GOOD.replace(b"70", b"NaN"), "NaN"),
    "missing_comma.json": (GOOD.replace(b"15, 10", b"15 10"), r"nodes.costs\[0\]: expected integers, found not JSON"),
    "key_twice.json": (GOOD.replace(b'"usage_limit": 70', b'"usage_limit": 70, "usage_limit": 7'), "stands twice"),
    "not_utf8.json": (GOOD.replace(b"three", b"\xff\xfe"), "not JSON"),
    "deep.json": (b"[" * 100_000, "not JSON|too deeply"),
    "deep_objects.json": (b'{"problem":' * 200 + b"{}" + b"}" * 200, "too deeply"),
    "unterminated_text.json": (b'{"problem": {"name": "' + b'\\"' * 1000, "not JSON"),
    "cut_short.json.gz": (gzip.compress(GOOD, mtime=0)[:-12], "whole gzip file"),
    "damaged.json.gz": (gzip.compress(GOOD, mtime=0)[:40] + b"\x00" * 40, "whole gzip file"),
}


def contents() -> dict[str, tuple[bytes, str]]:
    """File name: (bytes, pattern of the error)."""
    out = dict(RAW)
    for name, (change, expected) in CHANGES.items():
        document = copy.deepcopy(VALID)
        change(document["problem"])
        out[f"{name}.json"] = (json.dumps(document).encode(), expected)
    return out


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, (content, _) in contents().items():
        (FOLDER / name).write_bytes(content)


if __name__ == "__main__":
    main()
