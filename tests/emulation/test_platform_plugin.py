"""Whoever does not ask for the emulated platform keeps their own."""

import pytest

from vllm_kairos.emulation.platform_plugin import PLATFORM_VARIABLE, platform


@pytest.mark.parametrize("value", [None, "", "cpu", "1"])
def test_no_platform_unless_named(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv(PLATFORM_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(PLATFORM_VARIABLE, value)
    assert platform() is None


def test_the_emulated_platform_when_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLATFORM_VARIABLE, "emulated")
    assert platform() == "vllm_kairos.emulation.compat_platform.EmulatedPlatform"
