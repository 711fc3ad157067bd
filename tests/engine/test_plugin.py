"""What vLLM's entry points call: registration, the HTTP route and the check of request bodies."""

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient

from vllm_kairos import register
from vllm_kairos.engine import compat, compat_nixl, plugin
from vllm_kairos.engine.endpoint import KairosEndpoint, describe_node, request_problem
from vllm_kairos.errors import ConfigError, UnsupportedVersionError

GOOD = {"schema": 1, "chunk_schedule": [64]}


def test_register_is_idempotent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(plugin.PROGRESS_DELAY_VARIABLE, raising=False)
    register()
    register()
    assert compat.connector_class("KairosNixlConnector").__name__ == "KairosNixlConnector"


def test_progress_delay_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setenv(plugin.PROGRESS_DELAY_VARIABLE, "2000")
    monkeypatch.setattr(compat_nixl, "delay_nixl_progress", lambda delay: seen.append(delay) or True)
    register()
    assert seen == [2000]


@pytest.mark.parametrize("value", ["fast", "-1", "1.5", "99999999"])
def test_bad_progress_delay_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(plugin.PROGRESS_DELAY_VARIABLE, value)
    with pytest.raises(ConfigError, match=plugin.PROGRESS_DELAY_VARIABLE):
        plugin.progress_delay_us()


def test_unsupported_vllm_gets_one_line_at_load(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Case 64: every vLLM process loads the plugin, so it must not take down one that uses nothing of ours."""
    import sys

    import vllm

    monkeypatch.delitem(sys.modules, "vllm_kairos.engine.compat")
    monkeypatch.delattr("vllm_kairos.engine.compat")
    monkeypatch.setattr(vllm, "__version__", "0.99.0")
    with caplog.at_level(logging.ERROR, logger="vllm.kairos.plugin"):
        plugin.register_connector()
    assert [record.getMessage() for record in caplog.records] == [
        "vllm-kairos supports vLLM 0.30 to 0.33, found 0.99.0; KairosScheduler and KairosNixlConnector are not available"
    ]
    with pytest.raises(UnsupportedVersionError):
        __import__("vllm_kairos.engine.compat")


def config(**kairos: Any) -> Any:
    return SimpleNamespace(
        additional_config={"kairos": kairos} if kairos else {},
        model_config=SimpleNamespace(model="models/tiny", max_model_len=4096),
        parallel_config=SimpleNamespace(data_parallel_size=2),
        cache_config=SimpleNamespace(block_size=32),
    )


def test_node_description() -> None:
    settings = {"node_id": "d0", "role": "decode", "state_endpoint": "tcp://127.0.0.1:5557"}
    node = describe_node(config(**settings), SimpleNamespace(served_model_name=["tiny", "alias"]))
    assert (node["schema"], node["node_id"], node["role"], node["model"]) == (1, "d0", "decode", "tiny")
    assert node["state_endpoints"] == ["tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558"]
    assert (node["block_size_tokens"], node["max_model_len_tokens"], node["dp_size"]) == (32, 4096, 2)
    assert node["vllm_version"] == compat.VLLM_VERSION


def test_node_without_settings_has_no_id() -> None:
    node = describe_node(config(), SimpleNamespace(served_model_name=None))
    assert (node["node_id"], node["model"], node["state_endpoints"]) == (None, "models/tiny", [])


@pytest.fixture
async def client() -> TestClient:
    app = FastAPI()

    @app.post("/v1/completions")
    async def completions(request: Request) -> Any:
        return {"got": (await request.body()).decode()}

    endpoint = KairosEndpoint()
    endpoint.attach_router(app)
    engine = SimpleNamespace(vllm_config=config(node_id="d0"), generate=lambda *_, **__: None)
    await endpoint.init_state(engine, app.state, SimpleNamespace(served_model_name=None))
    return TestClient(app)


def test_plugin_satisfies_vllms_protocol() -> None:
    from vllm.plugins.endpoint_plugins.interface import EndpointPlugin

    assert isinstance(KairosEndpoint(), EndpointPlugin)


async def test_route(client: TestClient) -> None:
    assert client.get("/kairos/node").json()["node_id"] == "d0"


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "kairos"},
        {"prompt": "x", "kv_transfer_params": {"kairos": GOOD}},
        {"prompt": "kairos", "kv_transfer_params": None},
        {"kv_transfer_params": {"kairos": None}},
    ],
)
async def test_good_bodies_pass_byte_for_byte(client: TestClient, body: dict[str, Any]) -> None:
    raw = json.dumps(body, indent=3)
    assert client.post("/v1/completions", content=raw).json() == {"got": raw}


@pytest.mark.parametrize(
    ("kairos", "field"),
    [
        ({"schema": 2, "chunk_schedule": [1]}, "kv_transfer_params.kairos.schema"),
        ({"schema": 1, "chunk_schedule": [0]}, "kv_transfer_params.kairos.chunk_schedule[0]"),
        ({**GOOD, "surprise": 1}, "surprise"),
        ("nonsense", "kv_transfer_params.kairos"),
    ],
)
async def test_malformed_parameters_are_400_and_name_the_field(client: TestClient, kairos: Any, field: str) -> None:
    answer = client.post("/v1/completions", json={"prompt": "x", "kv_transfer_params": {"kairos": kairos}})
    assert answer.status_code == 400
    assert field in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("xargs", "field"),
    [
        ({"kairos_tbt_slo_s": 0}, "vllm_xargs.kairos_tbt_slo_s"),
        ({"kairos_tpot_slo_s": "0.05"}, "vllm_xargs.kairos_tpot_slo_s"),
        ({"kairos_tbt_slo_ms": 50}, "kairos_tbt_slo_ms"),
    ],
)
async def test_malformed_objectives_are_400_and_name_the_field(client: TestClient, xargs: Any, field: str) -> None:
    answer = client.post("/v1/completions", json={"prompt": "x", "vllm_xargs": xargs})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert field in error["message"]
    assert error["param"] == "vllm_xargs"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (
            b'{"vllm_xargs":{"kairos_tbt_slo_s":NaN}}',
            "vllm_xargs.kairos_tbt_slo_s must be a number of seconds > 0 and <= 3600, got nan",
        ),
        (
            b'{"vllm_xargs":{"kairos_tpot_slo_s":1e400}}',
            "kairos_tpot_slo_s must be a number of seconds > 0 and <= 3600, got inf",
        ),
        (b'{"vllm_xargs":{"kairos_tbt_slo_s":-1},"user":"\\ud800"}', "got -1"),
        (b'{"vllm_xargs":{"kairos_\\ud800":1}}', "'kairos_\\ud800'"),
        (
            b'{"kv_transfer_params":{"kairos":{"schema":1,"chunk_schedule":[-5]},"x":NaN}}',
            "chunk_schedule[0] must be >= 1, got -5",
        ),
        (b'{"kv_transfer_params":{"kairos":{"schema":1,"chunk_schedule":[NaN]}}}', "Expected `int`, got `float`"),
        (b'{"kv_transfer_params":{"kairos":{"\\ud800":1}}}', "{'\\ud800': 1}"),
        (b'\xef\xbb\xbf{"vllm_xargs":{"kairos_tbt_slo_s":0}}', "got 0"),
    ],
)
async def test_what_only_a_lenient_parser_reads_is_checked_too(client: TestClient, body: bytes, named: str) -> None:
    answer = client.post("/v1/completions", content=body)
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]


@pytest.mark.parametrize("body", [b'{"vllm_xargs":{"kairos_tbt_slo_s":1},"user":"\\ud800"}', b'{"kairos":' + b"[" * 200_000])
def test_a_lenient_body_without_a_fault_of_ours_passes(body: bytes) -> None:
    assert request_problem(body) is None


@pytest.mark.parametrize("body", [b"kairos", b'{"kairos"', b"\xff kairos", b'["kairos"]', b'{"kv_transfer_params": "kairos"}'])
def test_what_is_not_ours_is_vllms_to_report(body: bytes) -> None:
    assert request_problem(body) is None
