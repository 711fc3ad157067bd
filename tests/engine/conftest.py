"""Everything in this folder needs an installed vLLM."""

import warnings
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():  # importing vLLM and torch warns about themselves
    warnings.simplefilter("ignore")
    pytest.importorskip("vllm")
    from tests.engine import builder
    from vllm_kairos.engine import connector, scheduler  # noqa: F401
    from vllm_kairos.engine.plugin import register_connector

register_connector()

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents and item.get_closest_marker("e2e") is None:
            item.add_marker(pytest.mark.vllm)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return builder.write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def build(model: str) -> Any:
    """Builds schedulers and shuts them down when the test ends."""
    built: list[Any] = []

    def make(**options: Any) -> Any:
        built.append(builder.build_scheduler(model, **options))
        return built[-1]

    yield make
    for scheduler in built:
        scheduler.shutdown()
