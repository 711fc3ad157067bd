"""Reading a file that a user names: settings, a cluster, a profile."""

import errno
import os
from pathlib import Path

MOST_BYTES = 16 * 2**20
"""Far above any file of settings; a device that never ends is refused here instead of filling the memory."""


def read_input(path: str | Path) -> str:
    """The whole text of a file or pipe.

    Raises OSError when it cannot be opened or holds more than MOST_BYTES, UnicodeDecodeError when it is not UTF-8.
    """
    with Path(path).open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content.decode("utf-8")
