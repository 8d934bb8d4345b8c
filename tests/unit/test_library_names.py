"""What `import planner` costs and shows: names, signatures, and the page that describes them."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import planner
from planner.library.options import EvaluationOptions, SearchOptions
from planner.library.reference import reference
from planner.requests.evaluation import EvaluationRequest
from planner.requests.options import default_of, options_of
from planner.requests.search import SearchRequest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"
HEAVY = ("numpy", "onnx", "onnxruntime", "ortools", "networkx", "pydantic", "yaml", "pandas", "torch", "fastapi")
SHADOWED = ("emit", "evaluate", "explain", "report", "search", "verify")  # functions named as packages inside


def loaded_by(code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1].split()


def test_importing_loads_nothing() -> None:
    found = loaded_by("import planner; dir(planner); planner.Cancellation; planner.PlannerError")
    assert not {n.partition(".")[0] for n in found} & set(HEAVY)
    assert [n for n in found if n.startswith("planner")] == sorted(
        ["planner", "planner.errors", "planner.requests", "planner.requests.cancel", "planner.version"],
        key=found.index,
    )


@pytest.mark.parametrize("name", [n for n in planner.__all__ if n not in ("__version__", "Graph")])  # of numpy arrays
def test_a_name_is_loaded_without_what_it_does_not_use_yet(name: str) -> None:
    found = loaded_by(f"import planner; planner.{name}")
    assert not {n.partition(".")[0] for n in found} & set(HEAVY)


def test_dir_lists_what_there_is() -> None:
    assert dir(planner) == sorted(planner.__all__)
    assert all(hasattr(planner, name) for name in planner.__all__)
    assert {"search", "Plan", "Machine", "load", "build"} <= set(dir(planner))


@pytest.mark.parametrize("name", SHADOWED)
def test_a_function_stays_one_when_the_package_of_its_name_is_imported(name: str) -> None:
    package = importlib.import_module(f"planner.{name}")
    assert isinstance(package, ModuleType)
    assert isinstance(getattr(planner, name), FunctionType)
    code = f"import planner.{name}; import planner; print(callable(planner.{name}), end=' ')"
    assert loaded_by(code)[0] == "True"


def test_every_function_that_shadows_a_package_is_known() -> None:
    inside = Path(planner.__file__).parent
    names = {n for n in planner.__all__ if isinstance(getattr(planner, n), FunctionType)}
    assert {n for n in names if (inside / n).is_dir() or (inside / f"{n}.py").is_file()} == set(SHADOWED)


def test_a_name_can_be_replaced_for_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    own = planner.search
    monkeypatch.setattr(planner, "search", len)
    assert planner.search is len
    monkeypatch.undo()
    assert planner.search is own


@pytest.mark.parametrize(
    ("request_type", "options", "function", "otherwise"),
    [
        (SearchRequest, SearchOptions, planner.search, {"hardware"}),
        (EvaluationRequest, EvaluationOptions, planner.evaluate, {"hardware", "devices"}),
    ],
)
def test_keywords_are_the_fields_of_the_request(
    request_type: type, options: type, function: FunctionType, otherwise: set[str]
) -> None:
    known = {f.name: f for f in options_of(request_type)}
    assert set(options.__annotations__) | otherwise == set(known)
    parameters = inspect.signature(function).parameters
    for name in options.__annotations__:
        default = default_of(known[name])
        assert parameters[name].default == (() if default == [] else default)
        assert f"{name}: " in (function.__doc__ or "")
    assert not any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    assert "--" not in (function.__doc__ or "")


def test_typed_choices_are_those_of_the_request() -> None:
    """A type checker refuses what the request refuses, but for solvers, of which there may be more."""
    from typing import get_args, get_type_hints

    hints = get_type_hints(SearchOptions)
    for f in fields(SearchRequest):
        choices = f.metadata.get("option", {}).get("choices")
        if choices and f.name != "solver":
            found = {
                c for part in (hints[f.name], *get_args(hints[f.name])) for c in get_args(part) if isinstance(c, str)
            }
            assert found == set(choices), f.name


@pytest.mark.parametrize("name", [n for n in planner.__all__ if n != "__version__"])
def test_every_name_is_described(name: str) -> None:
    value = getattr(planner, name)
    assert len(inspect.getdoc(value) or "") > 20
    for member, thing in vars(value).items() if inspect.isclass(value) and name != "Graph" else ():
        if not member.startswith("_") and (inspect.isfunction(thing) or isinstance(thing, property)):
            assert inspect.getdoc(thing), f"{name}.{member}"


def test_the_page_is_made_of_the_docstrings() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "python -m planner.library.reference > docs/python.md"


def test_help_says_what_a_search_takes() -> None:
    import pydoc

    told = pydoc.render_doc(planner.search, renderer=pydoc.plaintext)
    assert "time_limit: seconds that the whole search may take" in told
    assert "memory_limit: 'int | str | None' = None" in told


def test_types_are_seen_from_outside() -> None:
    assert (Path(planner.__file__).parent / "py.typed").is_file()
