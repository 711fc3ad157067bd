"""Fit the shipped profiles to public measurements.

    python -m benchmarks.profiles.fit_shipped --data DIR [--out DIR] [NAME ...]

DIR holds the tables that docs/profiles.md lists, one folder per source. A rerun writes the same bytes.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.profiles import cpu, h200, llama, paper, rtx
from vllm_kairos.fitting.artifact import Profile, save_profile

BUILDERS: Mapping[str, Callable[[Path], Profile]] = {
    **llama.BUILDERS,
    **h200.BUILDERS,
    **rtx.BUILDERS,
    **paper.BUILDERS,
    **cpu.BUILDERS,
}
_SHIPPED = Path(__file__).parents[2] / "vllm_kairos/profiles/data"


def main() -> None:
    """Write the named profiles, or all, and print what they are worth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(BUILDERS)}; default all")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, default=_SHIPPED, metavar="DIR", help="default: the package's own")
    args = parser.parse_args()
    if unknown := set(args.names) - set(BUILDERS):
        parser.error(f"NAME must be one of {', '.join(BUILDERS)}, got {', '.join(sorted(unknown))}")
    for name in args.names or BUILDERS:
        profile = BUILDERS[name](args.data)
        save_profile(profile, args.out / f"{name}.json")
        sys.stdout.write(_summary(name, profile))


def _summary(name: str, profile: Profile) -> str:
    errors = [f"{kind} {value.mape:.1%} (worst {value.worst_error:.0%})" for kind, value in profile.accuracy.items()]
    lines = [f"{name}: {', '.join(errors)}; KV {profile.kv_capacity_tokens} tokens"]
    for row in profile.calibration:
        lines.append(f"  {row.quantity}: {row.target:g} {row.unit}, predicted {row.predicted:g}, residual {row.residual:+g}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
