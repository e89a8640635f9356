"""A grammar over token ids: which tokens may come next, in each row of a round.

llguidance walks the grammar; masks are bits, unpacked on the device. A row's mask depends on the
committed tokens and the drafts before it, so the law is the target's, restricted and renormalised.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from localspec.errors import UsageError

_WORD = 32


class Grammar:
    """Where one generation stands in a grammar.

    Args:
        tokenizer: of the target, with its vocabulary size and stop tokens.
        text: in llguidance's notation.
        opens: with this token the answer may begin with thoughts, which are free.
        closes: the tokens after which thoughts end and the grammar begins; empty: it begins at once.
        thinking: the prompt has opened the thoughts already.

    Raises:
        UsageError: not a grammar that can be enforced, with the reason.
    """

    def __init__(
        self,
        tokenizer: LLTokenizer,
        text: str,
        *,
        opens: int | None = None,
        closes: Sequence[int] = (),
        thinking: bool = False,
    ) -> None:
        failed, messages = LLMatcher.validate_grammar_with_warnings(text, tokenizer)
        if failed:
            raise UsageError(f"it cannot be enforced: {messages[0].strip().splitlines()[0]}")
        self._matcher = LLMatcher(tokenizer, text, log_level=0)
        self._num_words = -(-tokenizer.vocab_size // _WORD)
        self._opens = -1 if opens is None else opens
        self._closes = list(closes)
        self._free = thinking and bool(closes)
        self._thoughts: list[int] = []
        self._said = False
        self._mask()  # some grammars only show here that they cannot be followed

    def num_legal(self, drafts: Sequence[int]) -> int:
        """How many of the drafts, from the first, the grammar allows."""
        start = self._start(drafts)
        if start is None:
            return len(drafts)
        return start + int(self._matcher.validate_tokens(list(drafts[start:])))

    def masks(self, drafts: Sequence[int]) -> mx.array:
        """What each row allows: [1+w, V/32] uint32; row k follows the first k drafts.

        Rows after a draft that is not allowed hold anything; nothing can be drawn there.
        """
        start = self._start(drafts)
        words = np.full((len(drafts) + 1, self._num_words), 0xFFFFFFFF, dtype=np.uint32)
        if self._undecided:
            words[0] = self._mask()
            words[0, self._opens // _WORD] |= np.uint32(1 << self._opens % _WORD)
        if start is None:
            return mx.array(words)
        num_consumed = 0
        for row in range(start, len(drafts) + 1):
            if row or not self._undecided:
                words[row] = self._mask()
            if row == len(drafts) or not self._matcher.validate_tokens([drafts[row]]):
                break
            self._matcher.consume_token(drafts[row])
            num_consumed += 1
        self._matcher.rollback(num_consumed)
        return mx.array(words)

    def commit(self, tokens: Sequence[int]) -> None:
        """Go on by committed tokens, all of them allowed."""
        start = self._start(tokens)
        thoughts = tokens if start is None else tokens[:start]
        self._free = start is None
        if self._closes:
            self._thoughts = [*self._thoughts, *thoughts][-len(self._closes) :]
        self._said = self._said or bool(tokens)
        if start is not None and not self._matcher.is_stopped():
            self._matcher.consume_tokens(list(tokens[start:]))

    def _start(self, tokens: Sequence[int]) -> int | None:
        """Index of the first of the coming tokens under the grammar; None: they are all thoughts."""
        if not self._free and not (self._undecided and tokens and tokens[0] == self._opens):
            return 0
        past = self._thoughts
        for index, token in enumerate(tokens):
            past = [*past, token][-len(self._closes) :]
            if past == self._closes:
                return index + 1
        return None

    @property
    def _undecided(self) -> bool:
        """Whether the coming token may open thoughts."""
        return self._opens >= 0 and bool(self._closes) and not self._said and not self._free

    def _mask(self) -> npt.NDArray[np.uint32]:
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint32)
        if self._matcher.is_error():
            reason = self._matcher.get_error().strip().splitlines()[0]
            raise UsageError(f"the grammar cannot be followed any further: {reason}")
        return bits[: self._num_words]


def restrict(logits: mx.array, masks: mx.array) -> mx.array:
    """Logits [1, n, V] with -inf wherever the masks [n, V/32] have no bit."""
    bits = (masks[..., None] >> mx.arange(_WORD, dtype=mx.uint32)) & 1
    allowed = bits.reshape(masks.shape[0], -1)[:, : logits.shape[-1]] == 1
    return mx.where(allowed[None], logits, -mx.inf)
