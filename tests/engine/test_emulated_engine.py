"""The emulated executor, connector and platform against the real scheduler, in this process."""

import socket
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.v1.request import RequestStatus

from tests.engine.builder import make_request
from vllm_kairos.emulation import EmulatedExecutor, compat_connector, compat_executor
from vllm_kairos.emulation.compat_platform import EmulatedPlatform
from vllm_kairos.engine import compat
from vllm_kairos.engine.plugin import register_connector
from vllm_kairos.errors import ConfigError
from vllm_kairos.profiles import load_shipped

PROFILE = "a100-llama3-8b"
FAST = {"emulation": {"profile": PROFILE, "bias": 1e-4, "latency_s": 0.0, "idle_poll_s": 0.001}}

register_connector()


class Node:
    """A scheduler with its emulated executor, stepped as the engine core steps them."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.said: dict[str, list[int]] = {}
        self.most_tokens = 0  # in one step
        self._agent = None
        self.executor = EmulatedExecutor(scheduler.vllm_config)
        with self._as_own_process():
            self.executor.initialize_from_config([scheduler.kv_cache_config])

    @property
    def worker(self) -> Any:
        return self.executor.driver_worker

    def add(self, request: Any) -> Any:
        self.scheduler.add_request(request)
        return request

    def step(self) -> dict[str, int]:
        with self._as_own_process():
            output = self.scheduler.schedule()
            answer = self.executor.execute_model(output, non_block=True).result()
            answer = answer or self.executor.sample_tokens(None)
            outputs = self.scheduler.update_from_output(output, answer)
        for each in outputs[0].outputs if 0 in outputs else ():
            self.said.setdefault(each.request_id, []).extend(each.new_token_ids)
        self.most_tokens = max(self.most_tokens, output.total_num_scheduled_tokens)
        return dict(output.num_scheduled_tokens)

    def step_until(self, holds: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < deadline_s
            self.step()

    def close(self) -> None:
        with self._as_own_process():
            self.executor.shutdown()

    def _as_own_process(self) -> Any:
        """vLLM keeps one connector for each process; here two engines share one."""
        patch = pytest.MonkeyPatch()
        patch.setattr(kv_transfer_state, "_KV_CONNECTOR_AGENT", self._agent)
        node = self

        class Swap:
            def __enter__(self) -> None: ...

            def __exit__(self, *_: object) -> None:
                node._agent = kv_transfer_state._KV_CONNECTOR_AGENT
                patch.undo()

        return Swap()


@pytest.fixture
def make_node(build: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Node]]:
    # The tiny model has no tokenizer.
    monkeypatch.setattr(compat_executor, "_words", lambda config: tuple(range(1000, 2000)))
    made: list[Node] = []

    def make(**options: Any) -> Node:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", str(port))
        made.append(Node(build(**{"kairos": FAST} | options)))
        return made[-1]

    yield make
    for node in made:
        node.close()


@pytest.fixture(params=["EmulatedNixlConnector", "KairosNixlConnector"])
def connected(request: Any) -> dict[str, Any]:
    wrapped = request.param == "KairosNixlConnector"
    extra = {"kairos_inner": "EmulatedNixlConnector"} if wrapped else {}
    return {"connector": request.param, "connector_extra": extra}


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_request_is_served_in_chunks_and_says_what_it_should(make_node: Any, async_scheduling: bool) -> None:
    node = make_node(token_budget=64, async_scheduling=async_scheduling)
    request = node.add(make_request("a", 150, max_tokens=10))
    assert [node.step() for _ in range(3)] == [{"a": 64}, {"a": 64}, {"a": 22}]
    node.step_until(lambda: not node.scheduler.has_unfinished_requests())
    assert len(node.said["a"]) == 10
    again = make_node()
    again.add(make_request("b", [*request.prompt_token_ids, *node.said["a"][:4]], max_tokens=6))
    again.step_until(lambda: not again.scheduler.has_unfinished_requests())
    assert again.said["b"] == node.said["a"][4:]


def test_preempted_requests_say_the_same(make_node: Any) -> None:
    calm, crowded = make_node(), make_node(blocks=14)
    for node in (calm, crowded):
        for name in "abc":
            node.add(make_request(name, 40, max_tokens=60))
        node.step_until(lambda node=node: not node.scheduler.has_unfinished_requests())
    assert crowded.said == calm.said
    assert len(crowded.worker.engine.sequences) <= 3


def test_a_step_takes_what_the_profile_predicts(make_node: Any) -> None:
    node = make_node(kairos={"emulation": {"profile": PROFILE}})
    node.add(make_request("a", 500, max_tokens=4))
    begun_s = time.perf_counter()
    node.step()
    assert time.perf_counter() - begun_s >= load_shipped(PROFILE).step_model.latency_s(0, 0, 500, 0)


def test_an_idle_engine_hangs_with_its_next_step_and_takes_the_request_in(make_node: Any) -> None:
    node, begun_s = make_node(), time.perf_counter()
    node.worker.emulation_fault({"kind": "hang", "duration_s": 1.0})
    node.add(make_request("a", 100, max_tokens=2))
    assert node.scheduler.has_unfinished_requests()
    assert time.perf_counter() - begun_s < 1.0
    begun_s = time.perf_counter()
    node.step()
    assert time.perf_counter() - begun_s >= 1.0
    node.step_until(lambda: not node.scheduler.has_unfinished_requests())
    assert len(node.said["a"]) == 2


def test_kv_capacity_is_the_profiles(make_node: Any) -> None:
    node, profile = make_node(), load_shipped(PROFILE)
    (spec,) = node.worker.get_kv_cache_spec().values()
    assert spec.page_size_bytes == profile.kv_bytes_per_token * spec.block_size
    assert node.worker.determine_available_memory() // spec.page_size_bytes == profile.kv_capacity_tokens // spec.block_size + 1


def test_two_devices_are_refused(make_node: Any) -> None:
    config = make_node().scheduler.vllm_config
    fake = SimpleNamespace(
        additional_config=config.additional_config,
        parallel_config=SimpleNamespace(world_size=2),
        speculative_config=None,
    )
    with pytest.raises(ConfigError, match="one device"):
        compat_executor.EmulatedWorker(fake)


def test_a_connector_of_real_kv_is_refused(make_node: Any) -> None:
    node = make_node()
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector="NixlConnector", kv_connector_extra_config={}))
    with pytest.raises(ConfigError, match="'NixlConnector'"):
        compat_connector.make_worker_side(config, node.scheduler.kv_cache_config, None)  # type: ignore[arg-type]


def _prefilled(node: Node, prompt: list[int]) -> dict[str, Any]:
    """Compute a prompt for another node; returns what the router would carry there."""
    node.add(make_request("leg-p", prompt, max_tokens=1, transfer={"do_remote_decode": True, "do_remote_prefill": False}))
    with pytest.MonkeyPatch.context() as patch:
        answered: list[Any] = []
        finished = node.scheduler._connector_finished
        patch.setattr(node.scheduler, "_connector_finished", lambda request: answered.append(finished(request)) or answered[-1])
        node.step_until(lambda: bool(answered))
    params: dict[str, Any] = answered[0][1]
    return params


def test_kv_is_pulled_and_the_senders_blocks_are_freed(make_node: Any, connected: dict[str, Any]) -> None:
    prompt = list(range(3, 103))
    sender, reader = make_node(**connected), make_node(**connected)
    params = _prefilled(sender, prompt)
    free = compat.free_kv_blocks(sender.scheduler)
    request = reader.add(make_request("leg-d", prompt, max_tokens=5, transfer=params))
    reader.step()
    assert request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
    reader.step_until(lambda: request.status != RequestStatus.WAITING_FOR_REMOTE_KVS)
    reader.step_until(lambda: not reader.scheduler.has_unfinished_requests())
    sender.step_until(lambda: compat.free_kv_blocks(sender.scheduler) == free + 7)
    assert not sender.scheduler.has_requests()
    assert reader.said["leg-d"][0] == sender.said["leg-p"][0]
    assert len(reader.said["leg-d"]) == 5


@pytest.mark.parametrize("where", ["reader", "sender"])
def test_a_failed_or_expired_transfer_is_computed_anew(make_node: Any, connected: dict[str, Any], where: str) -> None:
    prompt = list(range(3, 103))
    sender, reader = make_node(**connected), make_node(**connected)
    if where == "reader":
        reader.worker.emulation_fault({"kind": "fail_transfers"})
    else:
        sender.worker.emulation_fault({"kind": "expire_transfers"})
    params = _prefilled(sender, prompt)
    if where == "sender":
        sender.step_until(lambda: not sender.scheduler.has_requests())
    reader.add(make_request("leg-d", prompt, max_tokens=5, transfer=params))
    reader.step_until(lambda: not reader.scheduler.has_unfinished_requests())
    assert reader.most_tokens >= 96
    assert reader.said["leg-d"][0] == sender.said["leg-p"][0]


@pytest.mark.parametrize("odd", [{"remote_port": "http"}, {"remote_port": 70_000}, {"remote_port": [1]}, {"remote_host": 5}])
def test_an_address_that_is_none_fails_the_transfer_and_not_the_engine(
    make_node: Any, connected: dict[str, Any], odd: dict[str, Any]
) -> None:
    prompt = list(range(3, 103))
    sender, reader = make_node(**connected), make_node(**connected)
    reader.add(make_request("leg-d", prompt, max_tokens=5, transfer=_prefilled(sender, prompt) | odd))
    reader.step_until(lambda: not reader.scheduler.has_unfinished_requests())
    assert reader.most_tokens >= 96
    assert len(reader.said["leg-d"]) == 5


def test_a_failed_transfer_ends_the_request_where_vllm_is_told_so(make_node: Any, connected: dict[str, Any]) -> None:
    prompt = list(range(3, 103))
    sender, reader = make_node(**connected), make_node(**connected)
    reader.scheduler.recompute_kv_load_failures = False  # --kv-transfer-config kv_load_failure_policy=fail
    reader.worker.emulation_fault({"kind": "fail_transfers"})
    request = reader.add(make_request("leg-d", prompt, transfer=_prefilled(sender, prompt)))
    reader.step_until(lambda: not reader.scheduler.has_unfinished_requests())
    assert request.status == RequestStatus.FINISHED_ERROR
    assert not reader.said.get("leg-d")


def test_the_platform_leaves_scheduling_as_gpu_users_have_it(build: Any) -> None:
    config = build(async_scheduling=True, prefix_caching=True).vllm_config
    config.cache_config.block_size = 16
    for mode in (True, False, None):
        config.scheduler_config.async_scheduling = mode
        EmulatedPlatform.check_and_update_config(config)
        assert config.scheduler_config.async_scheduling is mode
        assert config.cache_config.block_size == 16
        assert config.cache_config.enable_prefix_caching


def test_the_executor_lets_vllm_schedule_ahead() -> None:
    assert EmulatedExecutor.supports_async_scheduling()
