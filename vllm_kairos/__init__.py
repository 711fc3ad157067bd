"""vllm-kairos: prefill deflection for disaggregated vLLM.

Importing this package pulls in neither vllm nor torch nor scikit-learn; `KairosScheduler` is
resolved when vLLM asks for it by name (`--scheduler-cls vllm_kairos.KairosScheduler`).
"""

from typing import Any

__version__ = "0.1.0"
__all__ = ["KairosScheduler", "__version__", "register"]


def register() -> None:
    """Register our KV connector with vLLM; the `vllm.general_plugins` entry point, safe to call twice."""
    from vllm_kairos.engine.plugin import register_connector

    register_connector()


def __getattr__(name: str) -> Any:
    if name == "KairosScheduler":
        from vllm_kairos.engine.scheduler import KairosScheduler

        return KairosScheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
