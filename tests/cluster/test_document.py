"""docs/local-cluster.md and ClusterSpec say the same."""

import re
from dataclasses import fields
from pathlib import Path

from vllm_kairos.cluster.spec import ClusterSpec, make_spec, read_settings

DOCUMENT = Path(__file__).parents[2] / "docs" / "local-cluster.md"


def test_the_table_names_every_setting_and_no_other() -> None:
    rows = [line.split("|")[1] for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(field.name for field in fields(ClusterSpec))


def test_the_example_is_a_valid_file(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (tmp_path / "cluster.yaml").write_text(example)
    assert make_spec(read_settings(tmp_path / "cluster.yaml")).policy == "crossflow"
