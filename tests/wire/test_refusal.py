"""The text by which a router knows that a lease is gone."""

import pytest

from vllm_kairos.wire.refusal import refusal_message, refusal_reason


@pytest.mark.parametrize("reason", ["spent", "not-yours"])
def test_a_reason_comes_back(reason: str) -> None:
    assert refusal_reason(refusal_message(reason)) == reason


@pytest.mark.parametrize(
    "text", ["", "Internal server error", "spent", refusal_message(""), refusal_message("x" * 33), refusal_message("a\nb")]
)
def test_other_texts_have_none(text: str) -> None:
    assert refusal_reason(text) is None
