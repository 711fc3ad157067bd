"""vLLM's API server in a process that has imported it before. Read against vLLM 0.30-0.33."""

import gc
import importlib
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SERVER_MODULE = "vllm.entrypoints.openai.api_server"
# What a server and its engine core import on their way besides what SERVER_MODULE does. One that another
# vLLM lacks costs nothing: whoever needs a module imports it.
_IMPORTED_LATER = (
    "uvloop",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm_kairos.emulation.compat_executor",
    "vllm_kairos.engine.scheduler",
    "vllm_kairos.engine.connector",
)
# transformers imports these where they are installed, for the sake of losses and of assisted decoding.
_UNUSED = ("sklearn", "scipy")


def preload() -> None:
    """Import all that servers need, and keep the garbage collector from it: its passes take a third of the time.

    What was imported is out of its sight from then on. A pass over it would copy its pages in every
    process that is forked from this one.
    """
    gc.disable()
    with _absent(_UNUSED):
        for name in (SERVER_MODULE, *_IMPORTED_LATER):
            with suppress(ImportError):
                importlib.import_module(name)
    gc.collect()
    gc.freeze()
    gc.enable()


def serve() -> None:
    """Be the API server that `sys.argv` describes, until it ends."""
    sys.modules.pop(SERVER_MODULE, None)  # it runs anew as __main__
    runpy.run_module(SERVER_MODULE, run_name="__main__", alter_sys=True)


@contextmanager
def _absent(names: tuple[str, ...]) -> Iterator[None]:
    """Libraries that look as if they were not installed, and can be imported afterwards."""
    hidden: dict[str, None] = {name: None for name in names if name not in sys.modules}
    sys.modules.update(hidden)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
