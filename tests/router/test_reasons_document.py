"""docs/policies.md names every reason of a decision."""

from pathlib import Path

import pytest

from kairos_router import intake, placement
from vllm_kairos.core.decision import Reason, RejectReason

DOCUMENT = Path(__file__).parents[2] / "docs" / "policies.md"
OF_THE_ROUTER = {
    intake.UNSUPPORTED,
    intake.CLIENT_ASKED,
    intake.OVER_MODEL_LENGTH,
    placement.HANDLE_REASON,
    *placement.DECODE_ONLY_REASONS.values(),
}


@pytest.mark.parametrize("reason", sorted({*Reason, *RejectReason, *OF_THE_ROUTER}))
def test_every_reason_is_explained(reason: str) -> None:
    assert f"`{reason}`" in DOCUMENT.read_text().partition("\n## Reasons\n")[2]
