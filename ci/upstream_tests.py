"""Run vLLM's own tests on its scheduler and on ours, and compare test by test; see upstream_tests.sh."""

import json
import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("KAIROS_CACHE_DIR") or Path.home() / ".cache" / "vllm-kairos")
VERSION = "0.32.0"
FILES = (
    "tests/v1/core/test_scheduler.py",
    "tests/v1/core/test_async_scheduler.py",
    "tests/v1/core/test_priority_scheduler_random.py",
    "tests/v1/core/test_prefix_replay.py",
    "tests/v1/core/test_deferred_block_free.py",
    "tests/v1/kv_connector/unit/test_remote_prefill_lifecycle.py",
    "tests/v1/kv_connector/unit/test_remote_decode_lifecycle.py",
)
# What the source distribution's metadata is built with; torch is in the environment.
BUILD_TOOLS = ("setuptools", "setuptools-rust", "setuptools-scm", "wheel", "cmake", "ninja", "jinja2", "packaging")
TEST_TOOLS = ("tblib",)  # what the tests' conftest imports beyond the environment
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
MODEL = "facebook/opt-125m"
REVISION = "0" * 40
FEWEST_PASSES = 200  # fewer on stock means that the set-up is broken, not that the tests are
OPT_CONFIG = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "vocab_size": 50272,
    "hidden_size": 768,
    "word_embed_proj_dim": 768,
    "ffn_dim": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 2048,
    "activation_function": "relu",
    "do_layer_norm_before": True,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
    "torch_dtype": "float16",
}


def main(arguments: list[str]) -> int:
    """0 when everything that passes on stock passes on ours, 1 otherwise."""
    sources = unpack(source_distribution())
    home = hub_cache()
    stock = run("stock", sources, home, arguments)
    ours = run("kairos", sources, home, arguments)
    return compare(stock, ours, fewest=0 if arguments else FEWEST_PASSES)


def source_distribution() -> Path:
    """vLLM's source distribution, through pip on the first use."""
    folder = CACHE / "vllm-sdist"
    archive = folder / f"vllm-{VERSION}.tar.gz"
    if archive.exists():
        return archive
    tools = folder / "build-tools"
    subprocess.run([*PIP, "install", "--target", str(tools), *BUILD_TOOLS], check=True)
    environment = {"PYTHONPATH": str(tools), "PATH": f"{tools / 'bin'}:{os.environ['PATH']}"}
    environment |= {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": VERSION}
    fetch = ["download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", str(folder)]
    subprocess.run([*PIP, *fetch, f"vllm=={VERSION}"], check=True, env=os.environ | environment)
    return archive


def unpack(archive: Path) -> Path:
    """A folder with the distribution's tests/ and nothing else, so that `vllm` is the installed one."""
    folder = archive.parent / f"tests-{VERSION}"
    root = folder / f"vllm-{VERSION}"
    if not root.exists():
        subprocess.run([*PIP, "install", "--target", str(folder / "tools"), *TEST_TOOLS], check=True)
        with tarfile.open(archive) as tar:
            members = [m for m in tar.getmembers() if m.name.startswith(f"vllm-{VERSION}/tests/")]
            tar.extractall(folder, members=members, filter="data")
    return root


def hub_cache() -> Path:
    """A local hub cache that holds a configuration and a tokenizer under the name the tests ask for."""
    home = CACHE / "hub"
    model = home / "hub" / f"models--{MODEL.replace('/', '--')}"
    snapshot = model / "snapshots" / REVISION
    if not (snapshot / "tokenizer.json").exists():
        snapshot.mkdir(parents=True, exist_ok=True)
        (model / "refs").mkdir(exist_ok=True)
        (model / "refs" / "main").write_text(REVISION)
        (snapshot / "config.json").write_text(json.dumps(OPT_CONFIG))
        write_tokenizer(snapshot)
    return home


def write_tokenizer(folder: Path) -> None:
    """The small model's tokenizer when it is there, else a tiny one."""
    converted = CACHE / "models" / "smollm2-135m-instruct"
    if (converted / "tokenizer.json").exists():
        for name in ("tokenizer_config.json", "tokenizer.json"):
            (folder / name).write_bytes((converted / name).read_bytes())
        return
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    tokens = {"<pad>": 0, "<unk>": 1, "</s>": 2, **{f"word{index}": index for index in range(3, 1000)}}
    Tokenizer(WordLevel(tokens, unk_token="<unk>")).save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def run(scheduler: str, sources: Path, home: Path, arguments: list[str]) -> dict[str, str]:
    """Run the files with one scheduler; outcome by test name."""
    report = sources / f"report-{scheduler}.xml"
    report.unlink(missing_ok=True)
    environment = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "KAIROS_UPSTREAM": scheduler}
    paths = [ROOT, ROOT / "ci", sources, sources.parent / "tools"]
    environment["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    options = ["-q", "-W", "ignore", "-c", os.devnull, "--rootdir", str(sources), "--tb=line", f"--junitxml={report}"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        *options,
        "-p",
        "upstream_scheduler",
        "-p",
        "no:cacheprovider",
        *FILES,
        *arguments,
    ]
    print(f"upstream tests on {scheduler}", flush=True)  # noqa: T201
    done = subprocess.run(command, cwd=sources, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "no output", flush=True)  # noqa: T201
    return outcomes(report) if report.exists() else {}


def outcomes(report: Path) -> dict[str, str]:
    """Test name to passed, failed or skipped, from a JUnit report."""
    results = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        tags = {child.tag for child in case}
        outcome = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        results[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return results


def compare(stock: dict[str, str], ours: dict[str, str], *, fewest: int) -> int:
    """Report every test that passes on stock and not on ours."""
    passing = [name for name, outcome in stock.items() if outcome == "passed"]
    worse = [name for name in passing if ours.get(name) != "passed"]
    for name in worse:
        print(f"passes on stock, {ours.get(name, 'missing')} on ours: {name}")  # noqa: T201
    same = sum(outcome == "passed" for outcome in ours.values())
    print(f"{len(passing)} pass on stock, {same} on ours, {len(worse)} on stock only")  # noqa: T201
    return 1 if worse or len(passing) < max(1, fewest) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
