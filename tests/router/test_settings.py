"""Flags, environment and settings file: one meaning, one error form."""

import argparse
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kairos_router.config import PrefillTarget, RouterConfig, build_config
from kairos_router.flags import FLAGS, REFUSED, Flag, Shape
from kairos_router.settings import make_parser, resolve
from vllm_kairos.errors import ConfigError

WORKERS = ("--prefill", "http://p:1", "--decode", "http://d:2")
PARSER = make_parser("kairos router")


def config(*arguments: str, environment: dict[str, str] | None = None) -> RouterConfig:
    return build_config(resolve(PARSER.parse_args([*arguments]), environment or {}))


def test_defaults_are_those_of_vllm_router():
    made = config(*WORKERS)
    assert (made.port, made.prometheus_port) == (30000, 29000)
    assert made.health.interval_s == 60
    assert made.limits.request_timeout_s == 1800
    assert made.limits.queue_size == 100
    assert made.retry.max_retries == 5
    assert (made.breaker.failure_threshold, made.breaker.success_threshold) == (10, 3)


@pytest.mark.parametrize("words", [("768", "512", "64"), ("768,512,64",), ("768,512", "64")])
def test_a_list_is_given_as_words_or_with_commas(words):
    assert config(*WORKERS, "--deflect-chunk-candidates", *words).deflect.chunk_candidates_tokens == (768, 512, 64)
    with pytest.raises(ConfigError, match="--deflect-chunk-candidates must be an integer >= 1, got 'x'"):
        config(*WORKERS, "--deflect-chunk-candidates", "768,x")


def test_a_vllm_router_command_line_is_taken_as_it_is():
    made = config(
        *("--vllm-pd-disaggregation", "--kv-connector", "nixl", "--policy", "round_robin"),
        *("--prefill", "http://p1:8100", "9000", "--prefill", "http://p2:8100", "none", "--prefill", "http://p3:8100"),
        *("--decode", "http://d1:8200", "--decode", "http://d2:8200/", "--host", "0.0.0.0", "--port", "8000"),
        *("--request-id-headers", "X-Trace-Id", "--disable-retries", "--disable-circuit-breaker"),
    )
    assert made.prefill == (
        PrefillTarget(url="http://p1:8100", bootstrap_port=9000),
        PrefillTarget(url="http://p2:8100"),
        PrefillTarget(url="http://p3:8100"),
    )
    assert made.decode == ("http://d1:8200", "http://d2:8200")
    assert made.retry.max_retries == 0
    assert made.breaker.failure_threshold > 10**9
    assert made.request_id_headers == ("x-trace-id",)
    assert made.deflect.prefill_policy == made.deflect.decode_policy == "round_robin"


def test_traces_go_nowhere_unless_enabled_and_a_collectors_path_is_filled_in():
    assert config(*WORKERS, "--otlp-traces-endpoint", "c:4318").traces_endpoint is None
    assert config(*WORKERS, "--enable-trace").traces_endpoint == "http://localhost:4318/v1/traces"
    for given_endpoint, endpoint in (
        ("c:4318", "http://c:4318/v1/traces"),
        ("https://c/", "https://c/v1/traces"),
        ("http://c/otlp/v1/traces", "http://c/otlp/v1/traces"),
    ):
        made = config(*WORKERS, "--enable-trace", "--otlp-traces-endpoint", given_endpoint)
        assert made.traces_endpoint == endpoint


def test_a_toy_proxy_command_line_is_taken_as_it_is():
    made = config(
        *("--port", "8192", "--host", "0.0.0.0"),
        *("--prefiller-hosts", "a", "b", "--prefiller-ports", "8100", "8101"),
        *("--decoder-host", "c", "--decoder-port", "8200"),
    )
    assert [target.url for target in made.prefill] == ["http://a:8100", "http://b:8101"]
    assert made.decode == ("http://c:8200",)


def test_a_state_endpoints_url_is_spelled_as_the_servers_is():
    assert config(*WORKERS, "--state-endpoint", "http://p:1/=tcp://h:1").feed.endpoints == {"http://p:1": ("tcp://h:1",)}


def test_without_a_profile_nothing_is_deflected_unless_asked():
    assert config(*WORKERS).deflect.policy == "never"
    assert config(*WORKERS, "--profile", "x.json").deflect.policy == "kairos"
    assert config(*WORKERS, "--deflect-policy", "threshold:256").deflect.policy == "static-length:256"
    with pytest.raises(ConfigError, match="--profile must be given"):
        config(*WORKERS, "--deflect-policy", "predictive")


BAD_COMMAND_LINES = [
    (("--foo", "1"), "--foo is not supported"),
    (("--foo=1",), "--foo is not supported"),
    (("--por", "1"), "--por is not supported"),
    (("--service-discovery",), "Kubernetes"),
    (("--pd-kv-events", "http://p:1=tcp://p:2"), "--pd-kv-events is not supported: KV events"),
    (("--kv-connector", "mooncake"), "--kv-connector must be one of nixl .*, got 'mooncake'"),
    (("--kv-connector", "moriio"), "got 'moriio'"),
    (("--policy", "cache_aware"), "no prefix cache map"),
    (("--decode-policy", "sticky_least_loaded"), "no session table; consistent_hash keeps a session on its servers"),
    (("--port", "70000"), "--port must be an integer from 0 to 65535, got '70000'"),
    (("--port",), "--port"),
    (("--decode", "ftp://d"), "--decode must be http://"),
    (("--decode", "http://u:p@d:1"), "--decode must be http://"),
    (("--decode", "http://d:2"), "each server once, got 'http://d:2' 2 times"),
    (("--prefill", "http://q:1", "2", "3"), r"--prefill must be URL \[BOOTSTRAP\|none\]"),
    (("--deflect-alpha", "0.5"), "--deflect-alpha must be a finite number >= 1, got '0.5'"),
    (("--deflect-beta", "nan"), "--deflect-beta"),
    (("--deflect-policy", "static-length"), "--deflect-policy must be one of"),
    (("--deflect-policy", "dynamo-load:x"), "--deflect-policy must be one of .* got 'dynamo-load:x'"),
    (("--deflect-policy", "oracle"), "--deflect-policy must be a policy that works without .* true state.* got 'oracle'"),
    (("--ttft-slo-ms", "0"), "--ttft-slo-ms"),
    (("--state-endpoint", "http://p/x=tcp://h:1"), "--state-endpoint must be http://HOST:PORT"),
    (("--state-endpoint", "p0"), "--state-endpoint must be NODE=tcp"),
    (("--state-endpoint", "p0=tcp://h"), "--state-endpoint must be NODE=tcp"),
    (("--state-endpoint", "p0=tcp://h:99999"), "--state-endpoint must be NODE=tcp"),
    (("--decode", "http://a..b:2"), "--decode must be http://HOST:PORT .*, got 'http://a..b:2'"),
    (("--prefiller-hosts", "a b"), "--prefiller-hosts must be host names or addresses, got 'a b'"),
    (("--prefiller-hosts", "a", "b", "--prefiller-ports", "1"), "equally many, got 2 and 1"),
    (("--retry-max-backoff-ms", "1"), "--retry-max-backoff-ms must be >="),
    (("--kv-lease-secs", "1"), "--kv-lease-margin-secs must be <"),
    (("--otlp-traces-endpoint", "collector:4317"), "--otlp-traces-endpoint must be the collector's OTLP/HTTP port .*4317'"),
    (("--otlp-traces-endpoint", "ftp://c"), "--otlp-traces-endpoint must be an http://"),
    (("--api-key-validation-urls", "auth.example/me"), "--api-key-validation-urls must be an http:// or https:// URL"),
    (("--api-key-validation-urls", "http://u:p@a/"), "--api-key-validation-urls must be"),
    (("--config", "/nonexistent/router.yaml"), "--config must be a readable file, got '/nonexistent/router.yaml'"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD_COMMAND_LINES)
def test_bad_flags_are_refused_by_name_and_value(arguments, said):
    with pytest.raises(ConfigError, match=said) as refused:
        config(*WORKERS, *arguments)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("missing", [WORKERS[:2], WORKERS[2:]])
def test_both_roles_are_needed(missing):
    with pytest.raises(ConfigError, match="must be given at least once"):
        config(*missing)


BAD_FILES = [
    ("prefill: [unclosed", "must be YAML"),
    ("log_dir: 2020-99-99", "must be YAML: month must be in 1..12"),
    ("port: " + "9" * 5000, "must be YAML"),
    ("[" * 3000, "must be YAML"),
    ("- a\n- b", "must be a mapping of settings, got list"),
    ("prot: 8000", "prot is not a setting of this router, got 8000"),
    ("service_discovery: true", "Kubernetes"),
    ("port: [1, 2]", "port must be a single value, got list"),
    ("port: true", "port must be an integer"),
    ("port: 1.5", "got '1.5'"),
    ("port:", "port must have a value"),
    ("decision-headers: maybe", "must be true or false, got 'maybe'"),
]


@pytest.mark.parametrize(("text", "said"), BAD_FILES)
def test_bad_files_are_refused_by_key_and_value(tmp_path, text, said):
    file = tmp_path / "router.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said) as refused:
        config(*WORKERS, "--config", str(file))
    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_unknown_variable_is_refused():
    with pytest.raises(ConfigError, match="KAIROS_ROUTER_PROT is not a variable"):
        config(*WORKERS, environment={"KAIROS_ROUTER_PROT": "1"})


def test_flags_win_over_variables_and_variables_over_the_file(tmp_path):
    file = tmp_path / "router.yaml"
    file.write_text("port: 1\nprometheus_port: 1\nqueue-size: 1\n")
    made = config(
        *WORKERS,
        "--port",
        "3",
        environment={"KAIROS_ROUTER_CONFIG": str(file), "KAIROS_ROUTER_PORT": "2", "KAIROS_ROUTER_PROMETHEUS_PORT": "2"},
    )
    assert (made.port, made.prometheus_port, made.limits.queue_size) == (3, 2, 1)


def test_an_api_key_that_is_wrong_is_not_shown():
    with pytest.raises(ConfigError) as refused:
        config(*WORKERS, environment={"KAIROS_ROUTER_API_KEY": "  "})
    assert "not shown" in str(refused.value)


_WORDS = {
    "--deflect-policy": ["always", "never", "static-length:77", "threshold:5", "dynamo-isl:9:0.5"],
    "--prefill-unavailable": ["fail", "deflect"],
    "--kv-connector": ["nixl"],
    "--log-level": ["debug", "error"],
    "--policy": ["random", "power_of_two", "consistent_hash"],
    "--prefill-policy": ["round_robin"],
    "--decode-policy": ["kairos"],
    "--health-check-endpoint": ["/ping"],
    "--state-endpoint": ["p0=tcp://h:1", "d0=ipc:///tmp/x"],
    "--prefill": ["http://p9:1 9000", "http://p8:1"],
    "--decode": ["http://d9:1", "https://d8"],
    "--request-id-headers": ["x-a", "x-b"],
    "--cors-allowed-origins": ["https://a"],
    "--api-key-validation-urls": ["https://a/me?x=1", "http://b"],
}
_CANDIDATES = ["1", "3", "7", "some/path"]


def _words(flag: Flag) -> list[str]:
    """Values that this flag takes."""
    if flag.shape is Shape.SWITCH:
        return ["true"]
    return _WORDS.get(flag.name) or [word for word in _CANDIDATES if _takes(flag, word)]


def _takes(flag: Flag, word: str) -> bool:
    try:
        flag.parse(word)
    except ValueError:
        return False
    return True


@st.composite
def given_settings(draw: st.DrawFn) -> dict[str, list[str]]:
    chosen = draw(st.lists(st.sampled_from([flag for flag in FLAGS if "hosts" not in flag.name and "ports" not in flag.name])))
    made: dict[str, list[str]] = {}
    for flag in chosen:
        words = _words(flag)
        many = flag.shape not in (Shape.ONE, Shape.SWITCH)
        made[flag.field] = (
            draw(st.lists(st.sampled_from(words), min_size=1, max_size=2)) if many else [draw(st.sampled_from(words))]
        )
    return made


def _arguments(flag: Flag, words: list[str]) -> list[str]:
    if flag.shape is Shape.SWITCH:
        return [flag.name]
    if flag.shape in (Shape.REPEATED, Shape.PREFILL):
        return [part for word in words for part in (flag.name, *word.split(" "))]
    return [flag.name, *words]


@settings(max_examples=60, deadline=None)
@given(given_settings())
def test_flags_variables_and_file_mean_the_same(tmp_path_factory, made):
    flags = {flag.field: flag for flag in FLAGS}
    file = Path(tmp_path_factory.mktemp("settings")) / "router.yaml"
    single = (Shape.ONE, Shape.SWITCH)
    file.write_text(yaml.safe_dump({name: words[0] if flags[name].shape in single else words for name, words in made.items()}))
    arguments = [part for name, words in made.items() for part in _arguments(flags[name], words)]
    by_flags = resolve(PARSER.parse_args(arguments), {})
    by_variables = resolve(argparse.Namespace(), {flags[name].variable: ",".join(words) for name, words in made.items()})
    by_file = resolve(argparse.Namespace(config=str(file)), {})
    assert by_flags == by_variables == by_file


def test_no_flag_is_both_taken_and_refused():
    taken = {name for flag in FLAGS for name in (flag.name, *flag.aliases)}
    assert taken.isdisjoint(REFUSED)
    assert len({flag.field for flag in FLAGS}) == len(FLAGS)
