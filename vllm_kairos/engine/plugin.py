"""What the `vllm.general_plugins` entry point does in each vLLM process."""

import logging
import os

from vllm_kairos.errors import ConfigError, UnsupportedVersionError

PROGRESS_DELAY_VARIABLE = "KAIROS_NIXL_PROGRESS_DELAY_US"

logger = logging.getLogger("vllm.kairos.plugin")


def register_connector() -> None:
    """Make KairosNixlConnector known to vLLM and apply the NIXL progress delay; safe to call twice.

    On an unsupported vLLM it says so in one line and leaves vLLM as it is: the plugin is loaded by
    every vLLM process, also by those that use nothing of ours. Using our scheduler there raises.
    """
    try:
        from vllm_kairos.engine import compat, compat_nixl
    except UnsupportedVersionError as error:
        logger.error("%s; KairosScheduler and KairosNixlConnector are not available", error)
        return
    compat.register_connector("KairosNixlConnector", "vllm_kairos.engine.connector", "KairosNixlConnector")
    compat.register_connector("EmulatedNixlConnector", "vllm_kairos.emulation.compat_connector", "EmulatedNixlConnector")
    delay_us = progress_delay_us()
    if delay_us is not None and not compat_nixl.delay_nixl_progress(delay_us):
        logger.warning("%s is set, but NIXL is not installed", PROGRESS_DELAY_VARIABLE)


def progress_delay_us() -> int | None:
    """The delay from the environment, in microseconds; None leaves NIXL as it is."""
    value = os.environ.get(PROGRESS_DELAY_VARIABLE)
    if not value:
        return None
    if not value.isdigit() or int(value) > 1_000_000:
        raise ConfigError(f"{PROGRESS_DELAY_VARIABLE} must be a whole number of microseconds in 0..1000000, got {value!r}")
    return int(value)
