"""Pairs of servers between which KV did not arrive: avoided for a while, without blaming either server."""

PAIR_BACKOFF_S = 30.0
"""As long as vLLM's own default KV lease: by then a restarted peer has dropped what it held."""


class PairBackoff:
    """(prefill node, decode node) -> avoided until; pure, time is an argument."""

    def __init__(self, backoff_s: float = PAIR_BACKOFF_S) -> None:
        self._backoff_s = backoff_s
        self._until_s: dict[tuple[str, str], float] = {}

    def failed(self, prefill_node: str, decode_node: str, now_s: float) -> None:
        """A decode leg failed that was to pull KV over this pair."""
        self._until_s = {pair: until_s for pair, until_s in self._until_s.items() if until_s > now_s}
        self._until_s[prefill_node, decode_node] = now_s + self._backoff_s

    def avoided(self, prefill_node: str, decode_node: str, now_s: float) -> bool:
        """Say whether the pair is to be avoided."""
        return bool(self._until_s) and self._until_s.get((prefill_node, decode_node), now_s) > now_s
