"""The `vllm.endpoint_plugins` entry point of an emulated engine: see it, and have it fail, while it runs.

`GET /kairos/emulation` shows it, `POST /kairos/emulation/faults` takes one fault as JSON. vLLM loads
such a plugin only where VLLM_PLUGINS names it (kairos-emulation).
"""

import asyncio
from typing import Any

from vllm_kairos.emulation.faults import parse_fault
from vllm_kairos.errors import ConfigError

STATUS_PATH = "/kairos/emulation"
FAULTS_PATH = "/kairos/emulation/faults"
ANSWER_WAIT_S = 1.0
STATUS_WAIT_S = 10.0  # a long step is no hang


class EmulationControl:
    """The two routes; the engine core answers between two steps."""

    name = "kairos-emulation"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._engine: Any = None

    def attach_router(self, app: Any) -> None:
        """Add the routes to vLLM's application."""
        app.add_api_route(STATUS_PATH, self.status, methods=["GET"], include_in_schema=False)
        app.add_api_route(FAULTS_PATH, self.fault, methods=["POST"], include_in_schema=False)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Remember the engine to ask."""
        self._engine = engine_client

    async def status(self) -> Any:
        """Steps so far, seconds since start-up, and what step times are multiplied by; 503 from an engine that hangs."""
        from starlette.responses import JSONResponse

        try:
            (answer,) = await asyncio.wait_for(self._engine.collective_rpc("emulation_status"), STATUS_WAIT_S)
        except TimeoutError:
            return JSONResponse({"error": f"the engine core did not answer within {STATUS_WAIT_S:g} s"}, status_code=503)
        return dict(answer)

    async def fault(self, fault: dict[str, Any]) -> Any:
        """Have a fault happen; 400 says what is wrong with one that is not valid."""
        from starlette.responses import JSONResponse

        try:
            parse_fault(fault)
        except ConfigError as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        await self._tell(fault)
        return {"accepted": True}

    async def _tell(self, fault: dict[str, Any]) -> None:
        """Pass a fault on. An engine core that dies or hangs of it never answers, and the server must be able to end."""
        telling = asyncio.ensure_future(self._engine.collective_rpc("emulation_fault", args=(fault,)))
        await asyncio.wait({telling}, timeout=ANSWER_WAIT_S)
        if telling.done():
            telling.exception()  # that it died of the fault is no surprise
        else:
            telling.cancel()
