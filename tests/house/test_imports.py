"""No two modules import each other, by whatever way: at import, inside of a function, or for type checkers."""

from __future__ import annotations

from pathlib import Path

import grimp

from tests.house.import_graph import PACKAGES, ROOT, circles, imports_of


def test_no_modules_import_each_other() -> None:
    found = circles(imports_of(ROOT))
    assert not found, "\n\n" + "\n\n".join(map(str, found))


def test_the_imports_are_those_that_the_linter_of_layers_finds() -> None:
    """But for `import_module` and packages that load all their modules, which it does not read."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    linter = {(m, i) for m in graph.modules for i in graph.find_modules_directly_imported_by(m)}
    ours = {(i.importer, i.imported) for i in imports_of(ROOT)}
    assert linter <= ours
    assert ("planner.search.solvers", "planner.search.solvers.dp") in ours - linter


def package(folder: Path, **modules: str) -> Path:
    (folder / "p").mkdir()
    for name, text in {"__init__": "", **modules}.items():
        (folder / "p" / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def said(root: Path) -> list[str]:
    return [line.strip() for c in circles(imports_of(root, ["p"])) for line in str(c).splitlines()]


def test_a_deferred_import_closes_a_circle(tmp_path: Path) -> None:
    root = package(tmp_path, a="import p.b", b="def f():\n    from p import a\n    return a", c="import p.a")
    assert said(root) == ["2 modules import each other:", "p.a:1 imports p.b", "p.b:2 imports p.a (deferred)"]


def test_an_import_for_type_checkers_closes_a_circle(tmp_path: Path) -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import A"
    assert said(package(tmp_path, a="from p.b import B", b=text))[2] == "p.b:3 imports p.a (type checking)"


def test_a_package_that_gathers_its_modules_is_no_circle_until_one_imports_from_it(tmp_path: Path) -> None:
    root = package(tmp_path, __init__="from p.a import A", a="A = 1", b="from p.a import A")
    assert said(root) == []
    (root / "p" / "a.py").write_text("def f():\n    from p import A\n", encoding="utf-8")
    assert said(root) == ["2 modules import each other:", "p:1 imports p.a", "p.a:2 imports p (deferred)"]


def test_a_module_imported_by_its_name_in_a_text_counts(tmp_path: Path) -> None:
    root = package(tmp_path, a="import p.b", b='from importlib import import_module\nimport_module("p.a")')
    assert said(root)[2] == "p.b:2 imports p.a"


def test_a_package_that_loads_all_its_modules_imports_them(tmp_path: Path) -> None:
    text = "from pkgutil import iter_modules\nfor m in iter_modules(__path__): pass"
    assert said(package(tmp_path, __init__=text, a="import p"))[1:] == ["p:2 imports p.a", "p.a:1 imports p"]
