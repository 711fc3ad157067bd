"""Prompts of known kinds: short ones are deflected by the tests' router, long ones are kept."""

SHORT = "The capital of France is"
STORY = (
    "Once upon a time a small lighthouse stood at the edge of a cold sea. Every night its keeper climbed the "
    "stairs, lit the lamp and wrote the names of the passing ships into a book. "
)
LONG = STORY * 12
"""About 400 tokens."""
VERY_LONG = STORY * 40
"""About 1,400 tokens: several of the larger chunks, many of the smaller ones."""


def distinct(prompt: str, label: str) -> str:
    """The same kind of prompt without a shared prefix, so that no prefix cache answers for it."""
    return f"[{label}] {prompt}"
