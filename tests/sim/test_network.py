"""Flows share links fairly and no byte is lost, against a fluid simulated in small steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_kairos.errors import SimulationError
from vllm_kairos.sim.kernel import Kernel
from vllm_kairos.sim.network import Network, TwoTierTopology

NIC = 1000.0


def finish_times(topology: TwoTierTopology, flows: list[tuple[float, str, str, float]]) -> list[float]:
    """When each flow of (start, source, target, bytes) is done."""
    kernel = Kernel()
    network = Network(topology, kernel)
    done = [-1.0] * len(flows)

    def start(at: int, source: str, target: str, size: float) -> None:
        network.start(source, target, size, lambda: done.__setitem__(at, kernel.now_s))

    for at, (start_s, *flow) in enumerate(flows):
        kernel.at(start_s, lambda at=at, flow=flow: start(at, *flow))  # type: ignore[misc]
    kernel.run()
    assert network.active_flows == 0
    assert network.transfers == len(flows)
    assert sum(network.moved_bytes.values()) == sum(int(size) for *_, size in flows)
    return done


def fluid(topology: TwoTierTopology, flows: list[tuple[float, str, str, float]]) -> list[float]:
    """The same by going from one start or end to the next with rates worked out anew for everybody."""
    paths = [topology.path(source, target) for _, source, target, _ in flows]
    enter = [start_s + path.latency_s for (start_s, *_), path in zip(flows, paths, strict=True)]
    left, done, now_s = [float(size) for *_, size in flows], [-1.0] * len(flows), 0.0
    while min(done) < 0:
        active = [at for at in range(len(flows)) if done[at] < 0 and enter[at] <= now_s]
        count = {link: sum(link in paths[at].links for at in active) for path in paths for link in path.links}
        rate = {
            at: min(
                paths[at].most_bytes_per_s, *(topology.capacity_bytes_per_s(link) / count[link] for link in paths[at].links)
            )
            for at in active
        }
        next_s = min(
            [enter[at] for at in range(len(flows)) if enter[at] > now_s] + [now_s + left[at] / rate[at] for at in active]
        )
        for at in active:
            left[at] -= rate[at] * (next_s - now_s)
            if left[at] <= 1e-6:
                done[at] = next_s
        now_s = next_s
    return done


@pytest.mark.parametrize("count", [1, 2, 5])
def test_flows_into_one_nic_get_equal_shares(count: int) -> None:
    topology = TwoTierTopology(nic_bytes_per_s=NIC, latency_s=0.5)
    done = finish_times(topology, [(0.0, f"p{at}", "d0", 1000.0) for at in range(count)])
    assert done == pytest.approx([0.5 + count] * count)


def test_a_flow_speeds_up_when_another_ends() -> None:
    topology = TwoTierTopology(nic_bytes_per_s=NIC, latency_s=0.0)
    done = finish_times(topology, [(0.0, "p0", "d0", 500.0), (0.0, "p1", "d0", 1000.0)])
    assert done == pytest.approx([1.0, 1.5])


def test_racks_share_their_uplinks_and_have_their_own_latency() -> None:
    topology = TwoTierTopology(
        nic_bytes_per_s=NIC,
        uplink_bytes_per_s=NIC,
        latency_s=0.0,
        cross_latency_s=1.0,
        racks={"p0": "a", "p1": "a", "d0": "b", "d1": "b", "d2": "a"},
    )
    assert finish_times(topology, [(0.0, "p0", "d2", 1000.0)]) == pytest.approx([1.0])
    assert finish_times(topology, [(0.0, "p0", "d0", 1000.0), (0.0, "p1", "d1", 1000.0)]) == pytest.approx([3.0, 3.0])


def test_one_flow_alone_goes_no_faster_than_a_flow_can() -> None:
    topology = TwoTierTopology(nic_bytes_per_s=NIC, flow_bytes_per_s=100.0, latency_s=0.0)
    assert finish_times(topology, [(0.0, "p0", "d0", 1000.0)]) == pytest.approx([10.0])


def test_nothing_to_move_takes_the_latency() -> None:
    assert finish_times(TwoTierTopology(latency_s=0.25), [(1.0, "p0", "d0", 0.0)]) == [1.25]


flows = st.tuples(
    st.integers(0, 50).map(lambda tenths: tenths / 10),
    st.sampled_from(["p0", "p1", "p2"]),
    st.sampled_from(["d0", "d1"]),
    st.integers(1, 5000).map(float),
)


@given(mix=st.lists(flows, min_size=1, max_size=8), most=st.sampled_from([float("inf"), 400.0]))
def test_flows_end_as_a_fluid_would(mix: list[tuple[float, str, str, float]], most: float) -> None:
    topology = TwoTierTopology(
        nic_bytes_per_s=NIC,
        flow_bytes_per_s=most,
        uplink_bytes_per_s=1500.0,
        racks={"p0": "a", "d0": "a", "p1": "b", "p2": "b", "d1": "b"},
    )
    assert finish_times(topology, mix) == pytest.approx(fluid(topology, mix), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("field", ["nic_bytes_per_s", "flow_bytes_per_s", "uplink_bytes_per_s"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_a_link_without_capacity_is_refused(field: str, value: float) -> None:
    with pytest.raises(SimulationError, match=f"network: {field} must be > 0, got {value}"):
        TwoTierTopology(**{field: value})


@pytest.mark.parametrize("field", ["latency_s", "cross_latency_s"])
@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_an_impossible_latency_is_refused(field: str, value: float) -> None:
    with pytest.raises(SimulationError, match=f"network: {field} must be a finite number"):
        TwoTierTopology(**{field: value})
