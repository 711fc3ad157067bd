"""Answers that the router gives in its own name: a status, a reason, and the JSON that OpenAI clients expect."""

from http import HTTPStatus

import msgspec

from vllm_kairos.core.decision import Reject, RejectReason
from vllm_kairos.errors import KairosError

_DEFAULT_RETRY_AFTER_S = 1.0
_NEVER_FITS = frozenset({RejectReason.KV_TOO_LARGE, RejectReason.UNKNOWN_NODE})


class Refusal(KairosError):
    """The router does not serve this request; `reason` is machine-readable and never empty."""

    def __init__(self, status: int, reason: str, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        headers = {"content-type": "application/json"}
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers["www-authenticate"] = "Bearer"
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(1, round(self.retry_after_s)))
        return headers

    @property
    def kind(self) -> str:
        """OpenAI's `error.type`."""
        return HTTPStatus(self.status).phrase.replace(" ", "")

    @property
    def body(self) -> bytes:
        error = {"message": str(self), "type": self.kind, "param": None, "code": self.status, "reason": self.reason}
        return msgspec.json.encode({"error": error})


def of_reject(reject: Reject) -> Refusal:
    """A policy's refusal: 400 where trying again cannot help, else 503 with Retry-After."""
    message = reject.detail or f"no node takes this request: {reject.reason}"
    if reject.reason in _NEVER_FITS:
        return Refusal(400, str(reject.reason), message)
    return Refusal(503, str(reject.reason), message, retry_after_s=reject.retry_after_s or _DEFAULT_RETRY_AFTER_S)
