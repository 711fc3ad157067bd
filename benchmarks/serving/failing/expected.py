"""What emulated engines answer, worked out without any: words that follow from the prompt's tokens alone."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from vllm_kairos.emulation.words import digest, next_token, printable_words


class Model:
    """Says what an emulated engine with this tokenizer says."""

    def __init__(self, model_dir: Path) -> None:
        vocabulary = Tokenizer.from_file(str(model_dir / "tokenizer.json")).get_vocab()
        self._words = printable_words(vocabulary.items())
        self._texts = {index: text[1:] for text, index in vocabulary.items()}  # the first character marks a word's start

    def closed(self, prompt: Sequence[int]) -> list[int]:
        """The prompt with a word as its last token: a random one may end within a character that the answer would finish."""
        return [*prompt[:-1], self._words[0]]

    def answer(self, prompt: Sequence[int], tokens: int) -> list[str]:
        """The first `tokens` words behind a prompt of token ids."""
        state, said = digest(prompt), []
        for _ in range(tokens):
            token = next_token(state, self._words)
            state = digest((token,), state)
            said.append(self._texts[token])
        return said
