"""What a user installs holds everything: every module of both packages, the typing markers, the demo's data."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names in a wheel built from the source distribution, so that both are complete."""
    folder = tmp_path_factory.mktemp("dist")
    source = folder / "source"
    ignore = shutil.ignore_patterns(".git", ".kairos", ".*_cache", "__pycache__", "*.egg-info", "build", "dist", "tests")
    shutil.copytree(ROOT, source, ignore=ignore)
    code = "import setuptools.build_meta as build, sys; print(build.{}(sys.argv[1]))"
    _run(source, code.format("build_sdist"), folder)
    shutil.unpack_archive(next(folder.glob("*.tar.gz")), folder / "unpacked")
    _run(next((folder / "unpacked").iterdir()), code.format("build_wheel"), folder)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return set(wheel.namelist())


def _run(cwd: Path, code: str, target: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code, str(target)], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_wheel_holds_every_module_and_data_file(wheel_names: set[str]) -> None:
    wanted = {str(path.relative_to(ROOT)) for path in (ROOT / "vllm_kairos").rglob("*") if _ships(path)}
    wanted |= {
        str(path.relative_to(ROOT / "router")) for path in (ROOT / "router" / "kairos_router").rglob("*") if _ships(path)
    }
    assert wanted - wheel_names == set()


def test_the_wheel_holds_nothing_else(wheel_names: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"vllm_kairos", "kairos_router"}


def _ships(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts
