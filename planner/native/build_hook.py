"""Hatchling build hook: compiles the kernels into the wheel, or into the tree for an editable install, and sees to it
that the package is whole where it is built from a source distribution.

Without a C compiler the wheel is built pure, and the kernels are compiled on first use where that is possible.
It runs in the build's own environment, where the package is not installed, so it loads `library.py` by its path.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["PackageHook"]


class PackageHook(BuildHookInterface):
    """Completes the package, and adds the library, and with it the platform's tag, to the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before every wheel, editable ones too."""
        _link(Path(self.root))
        folder = Path(self.root) / "planner" / "native"
        toolchain = _toolchain(folder)
        for old in folder.glob("kernels-*.so"):
            old.unlink()
        target = folder / toolchain.library_name()
        try:
            toolchain.build(target)
        except (OSError, subprocess.SubprocessError) as e:
            self.app.display_warning(f"kernels not compiled ({e}); they will be on first use, if a compiler is found")
            return
        build_data["artifacts"].append(str(target.relative_to(self.root)))
        build_data["pure_python"] = False
        # plain C called through ctypes: any Python 3 on this platform
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def _link(root: Path) -> None:
    """Puts back the links that a source distribution leaves out, since it holds every folder once: the root's folders
    belong to the package."""
    for name in ("api", "cost_models"):
        place = root / "planner" / name
        if not place.exists():
            place.symlink_to(Path("..") / name, target_is_directory=True)


def _toolchain(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("toolchain", folder / "toolchain.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
