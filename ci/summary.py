"""Usage: ci/summary.py RESULTS. Sum the steps of ci/test.sh into one table and one closing line."""

import sys
from pathlib import Path
from xml.etree import ElementTree

KINDS = ("failures", "errors", "skipped")


def main(results: Path) -> int:
    """Print the table; return 1 when any step or test failed."""
    steps = [line.split() for line in (results / "steps").read_text().splitlines()]
    counts = dict.fromkeys(("tests", *KINDS), 0)
    for path in results.glob("*.xml"):
        for suite in ElementTree.parse(path).getroot().iter("testsuite"):
            for kind in counts:
                counts[kind] += int(suite.get(kind, 0))
    for name, status, seconds in steps:
        sys.stdout.write(f"{name:<10} {'ok' if status == '0' else 'FAILED':<8} {int(seconds):>5} s\n")
    failed_steps = sum(status != "0" for _, status, _ in steps)
    failed = max(failed_steps, counts["failures"] + counts["errors"])
    passed = counts["tests"] - sum(counts[kind] for kind in KINDS)
    words = (
        [f"{failed} failed"] * bool(failed) + [f"{passed} passed"] + [f"{counts['skipped']} skipped"] * bool(counts["skipped"])
    )
    sys.stdout.write(f"===== {', '.join(words)} in {sum(int(step[2]) for step in steps)}.00s =====\n")
    return int(bool(failed_steps))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
