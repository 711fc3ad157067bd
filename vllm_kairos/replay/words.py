"""Prompts as text, for endpoints that take no token ids: a word for about every token, as long as was asked for."""

from dataclasses import dataclass
from typing import Literal

from vllm_kairos.replay.prompts import parts
from vllm_kairos.workload.request import TraceRequest

Aim = Literal["total", "content"]

# Each is one token, with the space before it, in the vocabularies of common models; one for each value of a byte.
_TEXT = """
able about above across act add after again air all also always am among and animal answer any area arm around art ask at
back base be bed been before began behind being best better between big bird black blue board boat body book both box boy
bring brother build built but by call came can car care carry case cat cause cell center change check child city class clear
close cold color come common cost could country course cover cross cup cut dark day deep did direct do does dog done door
down draw drive drop dry during each early earth east easy eat end enough even ever every eye face fact fall family far farm
fast father feel feet few field find fire first fish five floor fly follow food foot for force form found four free friend
from front full game gave get girl give glass go gold good got great green ground group grow had half hand hard has have he
head hear heart heat heavy held help her here high hold home horse hot hour house how human idea if in iron is island it job
join just keep kind king knew know land large last late law lay lead learn leave left less let letter life light like line
list little live long look lot love low machine made main make man many map mark market mass matter may mean meat meet men
metal might mile milk mind mine minute miss money month moon more morning most mother mouth move
"""
WORDS = tuple(_TEXT.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """How an endpoint counts our text: `tokens_per_word`, and `template_tokens` around each prompt."""

    tokens_per_word: float = 1.0
    template_tokens: int = 0

    def content_tokens(self, prompt_tokens: int, aim: Aim) -> int:
        """Tokens of text in a prompt of `prompt_tokens`; aiming at the total leaves room for the template."""
        return max(1, prompt_tokens - self.template_tokens) if aim == "total" else prompt_tokens


def text(request: TraceRequest, measure: Measure, aim: Aim, seed: int) -> str:
    """The prompt as text of the length aimed at; equal blocks are equal words."""
    words: list[str] = []
    tokens = 0
    for part in parts(request, measure.content_tokens(request.prompt_tokens, aim), seed):
        tokens += part.tokens
        count = round(tokens / measure.tokens_per_word) - len(words)
        words += (WORDS[byte] for byte in part.digest(max(0, count)))
    return " ".join(words) or WORDS[0]
