"""The image is built from exact versions, holds no more than it needs, and runs as nobody in particular."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = ("server", "otel")  # that the image has
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
LOCKED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==(\S+)((?: \\\n +--hash=sha256:[0-9a-f]{64})+)$", re.M)


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile, in order: keyword and the rest."""
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.M))
    words = (line.partition(" ") for line in joined.splitlines() if line.strip())
    return [(keyword, rest) for keyword, _, rest in words]


def locked(name: str) -> dict[str, Version]:
    text = (ROOT / "docs" / "deploy" / name).read_text(encoding="utf-8")
    found = {canonicalize_name(package): Version(version) for package, version, _ in LOCKED.findall(text)}
    assert len(found) == len(re.findall(r"^[A-Za-z0-9]", text, re.M)), f"{name}: a line is no version with hashes"
    return found


def required(extra: str | None = None) -> list[Requirement]:
    """By the project or one of its extras, with those of the extras that one names."""
    project = PROJECT["project"]
    listed = project["dependencies"] if extra is None else project["optional-dependencies"][extra]
    out = []
    for requirement in map(Requirement, listed):
        if requirement.name == project["name"]:
            out += [inner for name in requirement.extras for inner in required(name)]
        else:
            out.append(requirement)
    return out


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("requirements.lock", [*required(), *(r for extra in EXTRAS for r in required(extra))]),
        ("build.lock", [Requirement(r) for r in PROJECT["build-system"]["requires"]]),
    ],
)
def test_every_dependency_is_locked_with_hashes(name: str, wanted: list[Requirement]) -> None:
    found = locked(name)
    lost = [str(r) for r in wanted if found.get(canonicalize_name(r.name), Version("0")) not in r.specifier]
    assert wanted
    assert not lost, f"deploy/{name} lacks {', '.join(lost)}; make it anew as docs/deploy.md says"


def test_locks_name_no_registry() -> None:
    for lock in (ROOT / "docs" / "deploy").glob("*.lock"):
        assert not re.search(r"://|--index|--find-links|@ ", lock.read_text(encoding="utf-8")), lock.name


def test_stages_are_of_one_exact_version() -> None:
    values = [rest for keyword, rest in instructions() if keyword == "ARG"]
    assert re.fullmatch(r"PYTHON=python:3\.\d+\.\d+-slim-[a-z]+(@sha256:[0-9a-f]{64})?", values[0])
    assert [rest for keyword, rest in instructions() if keyword == "FROM"] == ["${PYTHON} AS build", "${PYTHON}"]


def test_everything_that_pip_installs_is_locked_or_ours() -> None:
    installs = [rest for keyword, rest in instructions() if keyword == "RUN" and "pip install" in rest]
    assert len(installs) == 3
    for command in installs:
        assert "--require-hashes -r " in command or "--no-deps /wheels/" in command


def test_the_image_runs_as_a_user_that_is_not_root() -> None:
    users = [rest for keyword, rest in instructions() if keyword == "USER"]
    assert users
    assert all(user.isdigit() and int(user) > 0 for user in users)
    assert f"--uid {users[-1]} " in DOCKERFILE
    assert {"HEALTHCHECK", "STOPSIGNAL", "ENTRYPOINT", "VOLUME"} <= {keyword for keyword, _ in instructions()}


def test_what_the_image_copies_is_there_and_is_not_ignored() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert next(line for line in lines if not line.startswith("#")) == "*"
    allowed = [line[1:] for line in lines if line.startswith("!")]
    for keyword, rest in instructions():
        if keyword == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), f"Dockerfile: COPY {source}: there is none"
                assert any(Path(source).match(pattern) for pattern in allowed), f".dockerignore leaves out {source}"
