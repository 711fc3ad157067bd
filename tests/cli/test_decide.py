"""`kairos decide` explains a decision, in text and JSON, and names what is wrong with its inputs."""

import json
import re
from pathlib import Path

import pytest

from vllm_kairos.cli.decide import COMMAND
from vllm_kairos.errors import ConfigError, KairosError

DOCS = Path(__file__).parents[2] / "docs"
PROFILE, CLUSTER = DOCS / "examples/profile.json", DOCS / "examples/cluster.yaml"


def _run(*flags: str, cluster: Path = CLUSTER) -> int:
    inputs = ["--profile", str(PROFILE), "--cluster", str(cluster)]
    return COMMAND.run(COMMAND.make_parser("kairos decide").parse_args([*inputs, *flags]))


def _written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return path


def test_the_documented_example_prints_what_the_page_shows(capsys):
    assert _run("--prompt-tokens", "4096") == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    shown = re.search(r"--prompt-tokens 4096\n(.*?)```", (DOCS / "cluster-file.md").read_text(), re.DOTALL)
    assert shown is not None
    assert printed == shown.group(1).rstrip().splitlines()


def test_json_holds_the_same_decision(capsys):
    assert _run("--prompt-tokens", "4096", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["decision"]["decode_node"] == "d0"
    assert document["decision"]["schedule"] == [{"batch_tokens": 512, "steps": 9}]
    assert document["decision"]["state_age_s"] == pytest.approx(0.04)
    assert [node["node_id"] for node in document["nodes"]] == ["p0", "p1", "d0", "d1"]


def test_a_prompt_no_cache_can_hold_is_refused_with_status_1(capsys):
    assert _run("--prompt-tokens", "4096000") == 1
    assert "refused: kv-too-large" in capsys.readouterr().out


def test_json_of_a_refusal(capsys):
    assert _run("--prompt-tokens", "4096000", "--json") == 1
    assert json.loads(capsys.readouterr().out)["decision"]["reason"] == "kv-too-large"


@pytest.mark.parametrize("policy", ["never", "always", "static-length:8192", "static-queue:1", "kairos", "crossflow"])
def test_every_policy_explains_itself(policy, capsys):
    assert _run("--prompt-tokens", "4096", "--policy", policy) == 0
    assert "predicted TTFT" in capsys.readouterr().out


_LEASED = """
schema: 1
nodes:
  - {node_id: p0, role: prefill, queued_prompt_tokens: [9000, 9000]}
  - node_id: d0
    role: decode
    total_kv_blocks: 4000
    deflected_prefills: 3
    lease: {prefill_tokens: 5000, kv_blocks: 400, output_tokens: 900}
  - {node_id: d1, role: decode, total_kv_blocks: 4000, speaks_leases: true}
"""


def test_leases_show_with_what_they_decide(tmp_path, capsys):
    flags = ("--prompt-tokens", "4096", "--policy", "crossflow")
    assert _run(*flags, cluster=_written(tmp_path, _LEASED)) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "chosen" in lines["d0"]
    assert lines["d0"].rstrip().endswith("5000 tokens, 400 blocks, 900 out")
    assert "no-lease" in lines["d1"]


def test_json_shows_what_is_claimed(tmp_path, capsys):
    flags = ("--prompt-tokens", "4096", "--policy", "crossflow", "--json")
    assert _run(*flags, cluster=_written(tmp_path, _LEASED)) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["decision"]["claim"] == {"prefill_tokens": 4096, "kv_blocks": 272, "output_tokens": 256}
    assert [node["lease"] is not None for node in document["nodes"]] == [False, True, False]


def test_a_kept_request_names_its_pair(capsys):
    _run("--prompt-tokens", "4096", "--policy", "never")
    assert "keep: prefill on p1, decode on d0; reason: policy-never" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--prompt-tokens", "0"], "prompt_tokens must be >= 1, got 0"),
        (["--prompt-tokens", "1" + "0" * 400], "prompt_tokens must be <= 9007199254740992, got 1000"),
        (["--prompt-tokens", "9", "--tbt-slo-ms", "-1"], "tbt_slo_s must be a finite number > 0"),
        (["--prompt-tokens", "9", "--alpha", "0.5"], "alpha must be a finite number >= 1, got 0.5"),
        (["--prompt-tokens", "9", "--beta", "1.5"], "beta must be a finite number in (0, 1], got 1.5"),
        (["--prompt-tokens", "9", "--policy", "best"], "policy must be one of never, always"),
        (["--prompt-tokens", "9", "--prefill-unavailable", "maybe"], "prefill_unavailable must be one of fail"),
    ],
)
def test_a_bad_flag_is_named_with_its_rule_and_value(flags, message):
    with pytest.raises(KairosError, match=re.escape(message)):
        _run(*flags)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schema: 1\nnodes: []", "`$.nodes`"),
        ("schema: 2\nnodes: [{node_id: a, role: decode}]", "`$.schema`"),
        ("schema: 1\nnodes: [{node_id: a, role: chef}]", "'chef' - at `$.nodes[0].role`, got 'chef'"),
        ("schema: 1\nnodes: [{node_id: a, role: prefill, kv_token: 1}]", "unknown field `kv_token` - at `$.nodes[0]`"),
        ("schema: 1\nnodes: [{node_id: a, role: prefill, kv_tokens: -1}]", "`int` >= 0 - at `$.nodes[0].kv_tokens`, got -1"),
        ("schema: 1\nnodes: [{node_id: a, role: decode}]", "total_kv_blocks is required"),
        ("schema: 1\nnodes: [{node_id: a, role: prefill}, {node_id: a, role: prefill}]", "node_id must be unique, got 'a'"),
        (
            "schema: 1\nnodes: [{node_id: a, role: decode, total_kv_blocks: 1, free_kv_blocks: 2}]",
            "free_kv_blocks must be <= total_kv_blocks, got 2 > 1",
        ),
        ("nodes: [", "must be YAML or JSON"),
        ("nodes: 2020-99-99", "must be YAML or JSON: month must be in 1..12"),
        ("nodes: " + "9" * 5000, "must be YAML or JSON"),
        ("[" * 3000, "must be YAML or JSON"),
        ("schema: 1\nnodes: [{node_id: a, role: prefill, age_s: .inf}]", "`$.nodes[0].age_s`, got inf"),
        ("schema: 1\nnodes: [{node_id: a, role: prefill, kv_tokens: 1" + "0" * 400 + "}]", "`$.nodes[0].kv_tokens`, got 1000"),
        ("just text", "Expected `object`, got `str`"),
    ],
)
def test_a_broken_cluster_file_is_named_with_field_rule_and_value(tmp_path, text, message):
    path = _written(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        _run("--prompt-tokens", "9", cluster=path)
    assert str(path) in str(error.value)
    assert message in str(error.value)


def test_a_missing_cluster_file_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        _run("--prompt-tokens", "9", cluster=tmp_path / "absent.yaml")


def test_a_json_cluster_and_an_exponent_without_a_point_are_read(tmp_path, capsys):
    link = {"prefill_node": "p", "bandwidth_bytes_per_s": "2e10"}
    nodes = [{"node_id": "p", "role": "prefill"}, {"node_id": "d", "role": "decode", "total_kv_blocks": 900, "links": [link]}]
    assert _run("--prompt-tokens", "9", cluster=_written(tmp_path, json.dumps({"schema": 1, "nodes": nodes}))) == 0
    assert "d" in capsys.readouterr().out
