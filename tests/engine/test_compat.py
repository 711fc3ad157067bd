"""The seams: each test fails when a vLLM moves what compat.py relies on."""

import ast
import inspect
import textwrap
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler

from tests.engine.builder import make_request, step
from vllm_kairos import KairosScheduler
from vllm_kairos.engine import compat
from vllm_kairos.engine.version import check_version
from vllm_kairos.errors import UnsupportedVersionError


def calls_in(function: Any, name: str) -> list[ast.Call]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return [n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "attr", None) == name]


def sources(function: Any) -> str:
    return inspect.getsource(function)


@pytest.mark.parametrize("version", ["0.29.2", "0.34.0", "1.0.0", "dev", ""])
def test_unsupported_version_is_one_clear_line(version: str) -> None:
    """Case 64: a fake version string."""
    with pytest.raises(UnsupportedVersionError, match=r"supports vLLM 0\.30 to 0\.33, found") as caught:
        check_version(version)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", ["0.30.0", "0.31.1", "0.32.0+cpu", "0.33.0rc1"])
def test_supported_versions(version: str) -> None:
    check_version(version)


def test_class_is_an_async_scheduler() -> None:
    """Case 50: a subclass of the plain scheduler would make vLLM complain and cost latency."""
    assert issubclass(KairosScheduler, AsyncScheduler)


def test_async_scheduler_overrides_just_what_steps_aside() -> None:
    own = {name for name, value in vars(AsyncScheduler).items() if callable(value)}
    assert own == {"__init__", "_update_after_schedule", "_update_request_with_output"}


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_each_mode_behaves_as_vllms_own_class(build: Any, async_scheduling: bool) -> None:
    """Case 50: placeholders exist with async scheduling only."""
    scheduler = build(async_scheduling=async_scheduling)
    request = make_request("A", 10)
    scheduler.add_request(request)
    scheduler.schedule()
    assert request.num_output_placeholders == (1 if async_scheduling else 0)


def test_schedule_asks_about_every_request_it_schedules() -> None:
    """The seam of limited_requests: once for running and once for waiting requests, positional arguments."""
    if compat.HAS_LIMIT_HOOK:
        assert len(calls_in(Scheduler.schedule, "limit_new_tokens")) == 2
        return
    calls = calls_in(Scheduler.schedule, "_reserve_prefill_lookahead")
    assert [len(call.args) for call in calls] == [3, 3]
    names = list(inspect.signature(Scheduler._reserve_prefill_lookahead).parameters)
    assert names == ["self", "request", "num_computed_tokens", "num_new_tokens"]


def test_nothing_is_reserved_without_look_ahead(build: Any) -> None:
    scheduler = build()
    assert scheduler.num_prefill_lookahead == 0
    assert [scheduler._reserve_prefill_lookahead(make_request("A", 10), 9, new) for new in (1, 5)] == [1, 5]


def test_model_runner_still_rewinds_seeded_generators() -> None:
    """When this fails, CPU generators may be rewound some other way and must_run_whole may go."""
    from vllm.v1.worker import gpu_model_runner

    assert "set_offset" in inspect.getsource(gpu_model_runner)


def test_split_and_encoder_seams() -> None:
    split = list(inspect.signature(Scheduler._mamba_block_aligned_split).parameters)
    assert split[:5] == ["self", "request", "num_new_tokens", "num_new_local_computed_tokens", "num_external_computed_tokens"]
    encoder = list(inspect.signature(Scheduler._try_schedule_encoder_inputs).parameters)
    assert encoder[:4] == ["self", "request", "num_computed_tokens", "num_new_tokens"]
    assert len(calls_in(Scheduler.schedule, "_mamba_block_aligned_split")) == 2
    assert len(calls_in(Scheduler.schedule, "_try_schedule_encoder_inputs")) == 2


def test_queue_and_request_seams(build: Any) -> None:
    scheduler = build()
    queues = compat.waiting_queues(scheduler)
    assert len(queues) == 2
    assert all(isinstance(queue, RequestQueue) for queue in queues)
    request = make_request("A", 10)
    for name in ("is_prefill_chunk", "num_output_placeholders", "next_decode_eligible_step", "spec_token_ids", "mm_features"):
        assert hasattr(request, name)
    for name in ("finished_recving_kv_req_ids", "grammar_compile_error_reqs", "num_prefill_lookahead", "use_pp"):
        assert hasattr(scheduler, name)
    assert "grammar_compile_error_reqs" in sources(Scheduler.update_from_output)
    assert "remove_requests" in sources(RequestQueue)


def test_preemption_goes_through_one_method() -> None:
    assert len(calls_in(Scheduler.schedule, "_preempt_request")) == 1


def test_connector_factory_seam() -> None:
    assert "KairosNixlConnector" in KVConnectorFactory._registry
    compat.register_connector("KairosNixlConnector", "vllm_kairos.engine.connector", "KairosNixlConnector")
    with pytest.raises(ValueError):
        compat.connector_class("NoSuchConnector")


def test_unknown_keywords_are_passed_on(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 64: a new vLLM adds a keyword to a method we override; it reaches vLLM's own method."""
    scheduler = build()
    seen: dict[str, Any] = {}
    for name in ("schedule", "update_from_output", "add_request", "finish_requests", "_preempt_request"):
        monkeypatch.setattr(Scheduler, name, _recorder(seen, name))
    request = SimpleNamespace(request_id="A", kv_transfer_params=None)
    output = SimpleNamespace(total_num_scheduled_tokens=0)
    scheduler.schedule(new_keyword=1)
    scheduler.update_from_output(output, SimpleNamespace(), new_keyword=1)
    scheduler.add_request(request, new_keyword=1)
    scheduler.finish_requests("A", None, new_keyword=1)
    scheduler._preempt_request(request, 0.0, new_keyword=1)
    assert all(keywords == {"new_keyword": 1} for keywords in seen.values())
    assert len(seen) == 5


def _recorder(seen: dict[str, Any], name: str) -> Any:
    def record(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen[name] = kwargs
        return SimpleNamespace(total_num_scheduled_tokens=0, num_scheduled_tokens={})

    return record


def test_unknown_keywords_reach_the_seams_inside_a_step(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 64, the same for the methods that cap a request."""
    scheduler = build()
    seen: dict[str, Any] = {}
    monkeypatch.setattr(Scheduler, "_reserve_prefill_lookahead", _recorder(seen, "reserve"))
    monkeypatch.setattr(Scheduler, "_mamba_block_aligned_split", _recorder(seen, "split"))
    monkeypatch.setattr(Scheduler, "_try_schedule_encoder_inputs", _recorder(seen, "encoder"))
    request = make_request("A", 10)
    if not compat.HAS_LIMIT_HOOK:
        with compat.limited_requests(scheduler, lambda request, computed, new: new, free_width=1):
            scheduler._reserve_prefill_lookahead(request, 0, 5, new_keyword=1)
        assert seen["reserve"] == {"new_keyword": 1}
    scheduler._mamba_block_aligned_split(request, 5, 0, 0, new_keyword=1)
    scheduler._try_schedule_encoder_inputs(request, 0, 5, 100, new_keyword=1)
    assert seen["split"] == seen["encoder"] == {"new_keyword": 1}


def test_limits_are_gone_after_the_step(build: Any) -> None:
    scheduler = build(kairos={"role": "decode", "default_chunk_tokens": 8})
    scheduler.add_request(make_request("A", 20))
    step(scheduler)
    assert "_reserve_prefill_lookahead" not in vars(scheduler)
    assert scheduler._kairos_planner.step is None
