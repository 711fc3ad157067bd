"""What may import what, how large a file may be, and what it may be called."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"vllm_kairos": ROOT / "vllm_kairos", "kairos_router": ROOT / "router/kairos_router"}
MOST_FILE_LINES = 400
MOST_FUNCTION_LINES = 50
FORBIDDEN_NAMES = {"utils", "common", "helpers", "types"}
ENGINE_LIBRARIES = {"vllm", "torch", "nixl"}
OURS = set(PACKAGES)

# Longest prefix wins. Each entry: our own modules that it may import besides itself.
ALLOWED = {
    "vllm_kairos": {"vllm_kairos.engine"},
    "vllm_kairos.__main__": {"vllm_kairos.cli.main"},
    "vllm_kairos.errors": set(),
    "vllm_kairos.input_file": set(),
    "vllm_kairos.settings_object": {"vllm_kairos.errors"},
    "vllm_kairos.core": {"vllm_kairos.errors"},
    "vllm_kairos.wire": {"vllm_kairos.errors"},
    "vllm_kairos.fitting": {"vllm_kairos.core", "vllm_kairos.errors", "vllm_kairos.input_file"},
    "vllm_kairos.workload": {"vllm_kairos.errors"},
    "vllm_kairos.engine": {
        "vllm_kairos.__version__",
        "vllm_kairos.core",
        "vllm_kairos.wire",
        "vllm_kairos.fitting.artifact",
        "vllm_kairos.profiles",
        "vllm_kairos.steps",
        "vllm_kairos.errors",
        "vllm_kairos.settings_object",
    },
    "vllm_kairos.steps": {
        "vllm_kairos.cli.command",
        "vllm_kairos.core",
        "vllm_kairos.fitting.features",
        "vllm_kairos.results",
        "vllm_kairos.errors",
    },
    "vllm_kairos.profiler": {
        "vllm_kairos.__version__",
        "vllm_kairos.cli.command",
        "vllm_kairos.core",
        "vllm_kairos.fitting",
        "vllm_kairos.engine.compat",
        "vllm_kairos.engine.compat_inprocess",
        "vllm_kairos.profiles",
        "vllm_kairos.steps.step_file",
        "vllm_kairos.errors",
    },
    "vllm_kairos.profiles": {"vllm_kairos.fitting.artifact", "vllm_kairos.errors"},
    "vllm_kairos.sim": {"vllm_kairos.core", "vllm_kairos.workload", "vllm_kairos.errors"},
    "vllm_kairos.results": {"vllm_kairos.errors"},
    "vllm_kairos.simulate": {
        "vllm_kairos.__version__",
        "vllm_kairos.cli.command",
        "vllm_kairos.core",
        "vllm_kairos.fitting.artifact",
        "vllm_kairos.profiles",
        "vllm_kairos.results",
        "vllm_kairos.sim",
        "vllm_kairos.workload",
        "vllm_kairos.errors",
        "vllm_kairos.input_file",
    },
    "vllm_kairos.replay": {
        "vllm_kairos.__version__",
        "vllm_kairos.cli.command",
        "vllm_kairos.results",
        "vllm_kairos.workload",
        "vllm_kairos.errors",
    },
    "vllm_kairos.emulation": {
        "vllm_kairos.core",
        "vllm_kairos.fitting.artifact",
        "vllm_kairos.profiles",
        "vllm_kairos.errors",
        "vllm_kairos.settings_object",
    },
    "vllm_kairos.cluster": {
        "vllm_kairos.cli.command",
        "vllm_kairos.core.policies",
        "vllm_kairos.emulation.settings",
        "vllm_kairos.engine.settings",
        "vllm_kairos.fitting.artifact",
        "vllm_kairos.profiles",
        "vllm_kairos.errors",
        "vllm_kairos.input_file",
    },
    "vllm_kairos.demo": {
        "vllm_kairos.__version__",
        "vllm_kairos.cli.command",
        "vllm_kairos.cluster",
        "vllm_kairos.core",
        "vllm_kairos.fitting.artifact",
        "vllm_kairos.errors",
    },
    "vllm_kairos.cli": {
        "vllm_kairos.__version__",
        "vllm_kairos.core",
        "vllm_kairos.fitting.artifact",
        "vllm_kairos.profiles",
        "vllm_kairos.errors",
        "vllm_kairos.input_file",
    },
    "kairos_router": {
        "vllm_kairos.__version__",
        "vllm_kairos.cli.command",
        "vllm_kairos.core",
        "vllm_kairos.fitting.artifact",
        "vllm_kairos.wire",
        "vllm_kairos.errors",
        "vllm_kairos.input_file",
    },
}
# Libraries beyond the standard one, where that is worth a rule.
LIBRARIES = {
    "vllm_kairos.errors": set(),
    "vllm_kairos.input_file": set(),
    "vllm_kairos.settings_object": set(),
    "vllm_kairos.core": set(),
    "vllm_kairos.wire": {"msgspec"},
    "vllm_kairos.fitting": set(),
    "vllm_kairos.workload": set(),
    "vllm_kairos.fitting.fit": {"numpy", "sklearn"},
    "vllm_kairos.profiles": set(),
    "vllm_kairos.sim": set(),
    "vllm_kairos.results": set(),
    "vllm_kairos.steps": {"msgspec"},
    "vllm_kairos.steps.report": {"numpy"},
    "vllm_kairos.simulate": {"numpy", "matplotlib", "jinja2", "rich", "yaml"},
    "vllm_kairos.replay": {"aiohttp", "jinja2", "matplotlib", "msgspec", "numpy", "rich", "uvloop"},
    "vllm_kairos.emulation": ENGINE_LIBRARIES | {"starlette"},
    "vllm_kairos.cluster": {"yaml", "aiohttp", "rich"},
    "vllm_kairos.demo": {"aiohttp", "numpy", "matplotlib", "jinja2", "rich"},
}
STANDARD = set(sys.stdlib_module_names)


def _modules() -> Iterator[tuple[str, Path]]:
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join([package, *(part for part in parts if part != "__init__")]), path


def _imports(path: Path) -> Iterator[str]:
    """Every module that `path` imports, wherever in the file, as `module.name` for `from` imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _longest(table: dict[str, set[str]], module: str) -> str | None:
    return max((name for name in table if _within(module, name)), key=len, default=None)


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


MODULES = dict(_modules())
every_module = pytest.mark.parametrize("module", MODULES)


@every_module
def test_a_module_imports_only_what_its_layer_may(module):
    layer = _longest(ALLOWED, module)
    for imported in _imports(MODULES[module]):
        if imported.split(".")[0] not in OURS or (_within(imported, layer) and layer != "vllm_kairos"):
            continue
        assert any(_within(imported, allowed) for allowed in ALLOWED[layer]), f"{module} must not import {imported}"


@every_module
def test_a_module_uses_only_the_libraries_of_its_layer(module):
    layer = _longest(LIBRARIES, module)
    if layer is None:
        return
    for imported in _imports(MODULES[module]):
        library = imported.split(".")[0]
        assert library in STANDARD | OURS | LIBRARIES[layer], f"{module} must not import {library}"


@every_module
def test_only_the_seams_name_the_engine(module):
    if module.startswith(("vllm_kairos.engine.compat", "vllm_kairos.emulation.compat_")):
        return
    named = ENGINE_LIBRARIES & {imported.split(".")[0] for imported in _imports(MODULES[module])}
    assert not named, f"{module} must not import {sorted(named)}: only compat files of engine/ and emulation/ may"


def _sources() -> list[Path]:
    folders = [*PACKAGES.values(), ROOT / "tests", ROOT / "benchmarks"]
    return [path for folder in folders for path in sorted(folder.rglob("*.py"))]


every_source = pytest.mark.parametrize("path", _sources(), ids=lambda path: str(path.relative_to(ROOT)))


@every_source
def test_a_file_stays_short_and_so_do_its_functions(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") < MOST_FILE_LINES, f"{path} must have < {MOST_FILE_LINES} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = node.end_lineno - node.lineno + 1
            assert lines <= MOST_FUNCTION_LINES, f"{path}: {node.name} must have <= {MOST_FUNCTION_LINES} lines, has {lines}"


@every_source
def test_a_file_is_named_for_what_is_in_it(path):
    assert path.stem not in FORBIDDEN_NAMES


def test_importing_the_package_pulls_in_no_engine_and_no_fitting_library():
    code = "import sys, vllm_kairos; print(*[n for n in ('vllm', 'torch', 'sklearn', 'numpy') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == ""
