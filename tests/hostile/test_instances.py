"""Every hostile problem file: one error that names the place, and never more."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from planner.cli.main import main
from planner.errors import InputError
from planner.search.certificates.file import read_certificate
from planner.search.saved import text as instance_text
from planner.search.saved.instance import parse_instance, read_instance
from tests.hostile.make_instances import FOLDER, GOOD, contents

CONTENTS = contents()


def test_the_files_are_those_that_are_described() -> None:
    assert {p.name for p in FOLDER.iterdir()} == set(CONTENTS)


@pytest.mark.parametrize("name", sorted(CONTENTS))
def test_reading_names_what_is_wrong(name: str) -> None:
    content, expected = CONTENTS[name]
    assert (FOLDER / name).read_bytes() == content
    with pytest.raises(InputError, match=expected) as caught:
        read_instance(FOLDER / name)
    assert str(caught.value).startswith(str(FOLDER / name))
    assert len(str(caught.value)) < 500


def test_the_problem_they_are_made_from_is_read() -> None:
    problem = parse_instance(GOOD, Path("valid.json"))
    assert [len(n.costs) for n in problem.nodes] == [2, 3, 1]


@pytest.mark.parametrize("name", ["ragged_matrix.json", "deep.json", "cut_short.json.gz"])
def test_commands_refuse_with_status_3(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    for command in (["solve", str(FOLDER / name)], ["check", str(FOLDER / name), str(FOLDER / name)]):
        assert main(command) == 3
        out, err = capfd.readouterr()
        assert not out
        assert err.startswith(f"planner {command[0]}: error: {FOLDER / name}: ")
        assert len(err.splitlines()) == 1


def test_a_file_that_is_not_there(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["solve", str(tmp_path / "none.json")]) == 3
    assert "cannot be read: No such file" in capfd.readouterr().err
    assert main(["solve", str(tmp_path)]) == 3


def test_a_gzip_bomb_is_cut_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b"[" + b"0," * (1 << 22) + b"0]"))
    monkeypatch.setattr(instance_text, "MOST_BYTES", 1 << 20)
    with pytest.raises(InputError, match="longer than 1048576 bytes"):
        read_instance(bomb)


def test_names_that_look_like_lists_and_lists_that_look_like_names() -> None:
    document = json.loads(GOOD)
    document["problem"]["name"] = '#0 =[1,2] \\" {"costs": [3]}'
    document["problem"]["nodes"]["names"] = ["#0", "=", "[1, 2]"]
    problem = parse_instance(json.dumps(document).encode(), Path("names.json"))
    assert [n.name for n in problem.nodes] == ["#0", "=", "[1, 2]"]
    document["problem"]["nodes"]["costs"][0] = "#0"
    with pytest.raises(InputError, match=r"nodes.costs\[0\]: expected a list of integers"):
        parse_instance(json.dumps(document).encode(), Path("names.json"))


LEAF = {"denominator": 1, "instants": [], "prices": [], "order": [], "costs": True, "messages": None}
FINE = {"problem": "0" * 32, "choice": [1, 2, 0], "cost": 1, "bound": 1, "proof": [LEAF]}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"problem": 3}, "certificate.problem: expected the digest"),
        ({"choice": [1.5]}, "certificate.choice: expected a list of integers"),
        ({"choice": [10**30]}, "certificate.choice"),
        ({"cost": "x"}, "certificate.cost: expected an integer"),
        ({"cost": True}, "certificate.cost: expected an integer"),
        ({"proof": {}}, "certificate.proof: expected a list"),
        ({"proof": [3]}, "certificate.proof: expected a list"),
        ({"proof": [{**LEAF, "costs": 1}]}, r"proof\[0\].costs: expected true or false"),
        ({"proof": [{**LEAF, "prices": [1]}]}, r"proof\[0\].prices: expected 0 prices"),
        ({"proof": [{**LEAF, "denominator": "9" * 5000}]}, r"proof\[0\].denominator: expected an integer"),
        ({"proof": [{**LEAF, "messages": {"edges": [[0, 1]], "to_u": [], "to_v": []}}]}, "to_u: expected 1 lists"),
        ({"proof": [{**LEAF, "messages": {"edges": [[0]], "to_u": [], "to_v": []}}]}, "expected two nodes"),
        ({"proof": [{"node": 0, "states": [[0]]}]}, "expected the key 'children'"),
    ],
)
def test_malformed_certificates_name_the_place(change: dict[str, object], expected: str, tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps({"certificate": FINE | change}))
    with pytest.raises(InputError, match=expected):
        read_certificate(path)


@pytest.mark.parametrize(
    "leaf",
    [
        {"order": [0, 0]},
        {"order": [7]},
        {"order": [-1]},
        {"denominator": 0},
        {"instants": [0], "prices": [-5]},
        {"instants": [0, 0], "prices": [5, 5]},
        {"costs": False},
        {"messages": {"edges": [[0, 1]], "to_u": [[1, 2, 3]], "to_v": [[1]]}},
        {"messages": {"edges": [[0, 9]], "to_u": [[1, 2]], "to_v": [[1]]}},
        {"messages": {"edges": [[1, 1]], "to_u": [[1, 2, 3]], "to_v": [[1, 2, 3]]}},
    ],
    ids=lambda leaf: next(iter(leaf)),
)
def test_senseless_certificates_are_refused_with_status_1(
    leaf: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.json").write_bytes(GOOD)
    (tmp_path / "c.json").write_text(json.dumps({"certificate": FINE | {"proof": [LEAF | leaf]}}))
    assert main(["check", str(tmp_path / "p.json"), str(tmp_path / "c.json"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["accepted"]
    assert any(d.startswith("the proof: ") for d in found["defects"])
