"""The reference page of the flags, written from their table: `python -m kairos_router.flags_page > docs/router-flags.md`."""

import sys
from collections.abc import Iterator

from kairos_router.flags import FLAGS, REFUSED, Flag, Shape
from kairos_router.settings import CONFIG_VARIABLE, PREFIX, default_text

_INTRO = f"""\
# Flags of `kairos router`

Written from the flag table by `python -m kairos_router.flags_page > docs/router-flags.md`.

Every flag is also a key of the `--config` file (YAML, the name without `--`; a list where it may be given several
times) and an environment variable (`{PREFIX}` and the name in capitals; a comma between several values).
`{CONFIG_VARIABLE}` names the file. A flag wins over its variable, a variable over the file, the file over the default.
Names may not be shortened, and a flag, key or variable that is not listed here is an error.
"""


def page() -> str:
    """Return the whole page as Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _INTRO
    for group in dict.fromkeys(flag.group for flag in FLAGS):
        yield f"## {group[0].upper()}{group[1:]}\n"
        yield "| flag | default | meaning |"
        yield "|---|---|---|"
        for flag in FLAGS:
            if flag.group == group:
                yield f"| {_usage(flag)} | {_default(flag)} | {_cell(flag.help)} |"
        yield ""
    yield "## Known elsewhere, refused here\n"
    yield "| flag | why |"
    yield "|---|---|"
    for name, reason in REFUSED.items():
        yield f"| `{name}` | {_cell(reason)} |"


def _usage(flag: Flag) -> str:
    values = {
        Shape.SWITCH: "",
        Shape.ONE: f" {flag.metavar}",
        Shape.LIST: f" {flag.metavar} ...",
        Shape.REPEATED: f" {flag.metavar}",
        Shape.PREFILL: " URL [BOOTSTRAP\\|none]",
    }[flag.shape]
    aliases = "".join(f", `{alias}`" for alias in flag.aliases)
    again = " (repeat)" if flag.shape in (Shape.REPEATED, Shape.PREFILL) else ""
    return f"`{flag.name}{values}`{aliases}{again}"


def _default(flag: Flag) -> str:
    if flag.default in (None, (), False):
        return "off" if flag.shape is Shape.SWITCH else "none"
    return f"`{default_text(flag)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
