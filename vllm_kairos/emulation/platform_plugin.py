"""The `vllm.platform_plugins` entry point: an emulated platform, for a process that asks for it by name."""

import os

PLATFORM_VARIABLE = "KAIROS_PLATFORM"
EMULATED = "emulated"


def platform() -> str | None:
    """The class path of the emulated platform where KAIROS_PLATFORM=emulated, else None: vLLM chooses as it would."""
    if os.environ.get(PLATFORM_VARIABLE) != EMULATED:
        return None
    return "vllm_kairos.emulation.compat_platform.EmulatedPlatform"
