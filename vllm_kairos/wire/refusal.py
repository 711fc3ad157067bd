"""How a server says that it did not admit a deflected request under its lease: an error before any work.

It is the status, or, where the head of a stream has gone out, the `code` of its first event; the message says why.
"""

import re

LEASE_GONE_STATUS = 409
_PREFIX = "kairos: lease gone: "
_MESSAGE = re.compile(re.escape(_PREFIX) + r"([a-z-]{1,32})")


def refusal_message(reason: str) -> str:
    """The text of the error; `reason` is one lower-case word, or several with hyphens."""
    return f"{_PREFIX}{reason}"


def refusal_reason(message: str) -> str | None:
    """Why the request was not admitted; None where `message` is of another error."""
    found = _MESSAGE.fullmatch(message)
    return None if found is None else found[1]
