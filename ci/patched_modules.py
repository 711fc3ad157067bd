"""Pytest plugin for patch_test.sh: modules found under KAIROS_PATCHED_MODULES are imported from there."""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType


class PatchedModules(importlib.abc.MetaPathFinder):
    """Finds the patched copy of a module, and nothing else."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        source = self._root.joinpath(*fullname.split(".")).with_suffix(".py")
        return importlib.util.spec_from_file_location(fullname, source) if source.is_file() else None


if root := os.environ.get("KAIROS_PATCHED_MODULES"):
    sys.meta_path.insert(0, PatchedModules(Path(root)))
