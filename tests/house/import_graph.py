"""Which module imports which, read from the source: imports inside of functions and for type checkers count as well.

`python -m tests.house.import_graph` prints every circle with the imports that make it.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import networkx as nx

__all__ = ["PACKAGES", "ROOT", "Circle", "Import", "circles", "imports_of"]

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("planner",)  # with `planner.api` and `planner.cost_models`, which are links

When = Literal["at import", "deferred", "type checking"]


@dataclass(frozen=True, slots=True)
class Import:
    """One statement: `importer` names a module of `imported`'s root package or of another one of ours.

    `when`: as the importer is loaded, inside of a function, or for type checkers alone.
    """

    importer: str
    imported: str
    line: int
    when: When

    def __str__(self) -> str:
        told = "" if self.when == "at import" else f" ({self.when})"
        return f"{self.importer}:{self.line} imports {self.imported}{told}"


@dataclass(frozen=True, slots=True)
class Circle:
    """Modules each of which reaches all others by imports, and the imports among them."""

    modules: frozenset[str]
    imports: tuple[Import, ...]

    def __str__(self) -> str:
        return "\n".join([f"{len(self.modules)} modules import each other:", *(f"  {i}" for i in self.imports)])


def imports_of(root: Path, packages: Iterable[str] = PACKAGES) -> list[Import]:
    """All imports between modules of these packages, which are folders in `root`.

    `from package import name` imports the module `package.name` where there is one, else the package.  That a module
    is loaded after the packages around it is no import.
    """
    files = {_name(p, root): p for package in packages for p in _sources(root / package)}
    found = (i for name, path in files.items() for i in _Reader(name, path, files).read())
    return list(dict.fromkeys(found))


def circles(imports: Iterable[Import]) -> list[Circle]:
    """Strongly connected components of more than one module, the largest first."""
    held = list(imports)
    graph = nx.DiGraph((i.importer, i.imported) for i in held if i.importer != i.imported)
    found = [frozenset(c) for c in nx.strongly_connected_components(graph) if len(c) > 1]
    return [
        Circle(c, tuple(i for i in held if i.importer in c and i.imported in c))
        for c in sorted(found, key=lambda c: (-len(c), min(c)))
    ]


def _sources(package: Path) -> list[Path]:
    found = (Path(folder) / n for folder, _, names in os.walk(package, followlinks=True) for n in names)
    return sorted(p for p in found if p.suffix == ".py")


def _name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class _Reader(ast.NodeVisitor):
    """The imports of one file."""

    def __init__(self, name: str, path: Path, files: Mapping[str, Path]) -> None:
        self.name, self.path, self.files = name, path, files
        self.package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        self.when: When = "at import"
        self.found: list[Import] = []

    def read(self) -> list[Import]:
        self.visit(ast.parse(self.path.read_text(encoding="utf-8"), str(self.path)))
        return self.found

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            parts = self.package.split(".")
            base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            self._add(inner if inner in self.files else base, node.lineno)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) not in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            self.generic_visit(node)
            return
        self._within("type checking", node.body)
        for statement in node.orelse:
            self.visit(statement)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._within("deferred", ast.iter_child_nodes(node))

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._within("deferred", ast.iter_child_nodes(node))

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._within("deferred", ast.iter_child_nodes(node))

    def visit_Call(self, node: ast.Call) -> None:
        """`import_module("package.module")` is an import, too; a package that hands on its `__path__` for all its
        modules to be loaded imports each of them."""
        called = ast.unparse(node.func)
        if called.endswith(("import_module", "__import__")) and node.args and isinstance(node.args[0], ast.Constant):
            self._add(str(node.args[0].value), node.lineno)
        if any(isinstance(a, ast.Name) and a.id == "__path__" for a in node.args):
            for name in self.files:
                if name.rpartition(".")[0] == self.name:
                    self._add(name, node.lineno)
        self.generic_visit(node)

    def _within(self, when: When, nodes: Iterable[ast.AST]) -> None:
        before, self.when = self.when, when
        for node in nodes:
            self.visit(node)
        self.when = before

    def _add(self, imported: str, line: int) -> None:
        if imported in self.files:
            self.found.append(Import(self.name, imported, line, self.when))


def _lines(found: Iterable[Circle]) -> Iterator[str]:
    for circle in found:
        yield str(circle)
        yield ""


if __name__ == "__main__":
    all_circles = circles(imports_of(ROOT))
    print("\n".join(_lines(all_circles)))
    sys.exit(bool(all_circles))
