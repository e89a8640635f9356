"""One request being generated: chunked prefill, then rounds of draft, verify, accept, commit.

Every call of `step` is one chunk or one round, so that requests can be interleaved and cancelled. The
last prompt token is the first anchor; the cache always holds what precedes the anchor.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from localspec.engine.acceptance import Verdict, accept_certain, accept_sampled
from localspec.engine.auto import Auto
from localspec.engine.drafting import Drafted, ids, make_drafts
from localspec.engine.drawing import chances, likeliest
from localspec.engine.grammar import restrict
from localspec.engine.keeping import APART, Keeping
from localspec.engine.logprobs import token_logprobs
from localspec.engine.metrics import Stats
from localspec.engine.policy import FixedWidth, Outcome, WidthPolicy
from localspec.engine.prefixes import Conversation, PrefixCache, settle
from localspec.engine.request import (
    Committed,
    Event,
    Finished,
    FinishReason,
    Prefilled,
    Request,
    TokenLogprob,
)
from localspec.engine.sampling import History, Uniforms, sample
from localspec.engine.target import Output, Target
from localspec.engine.width import AdaptiveWidth, Experience
from localspec.errors import ContextOverflow
from localspec.models.drafter import Drafter, ForetellingDrafter, Proposal

PREFILL_CHUNK = APART
SHARED_CHUNK = 128
"""While others generate too, so that none waits long for its next round."""
_CLEAR_EVERY = 256
_FIXED_POINT = 2**20
"""Of chances that are read together with whole numbers."""
_FEW_UNOBSERVED, _MOST_UNOBSERVED = 4, 128


@dataclass(slots=True)
class _Step:
    """A plain step under way: the token [1] it will commit, and what the target computed."""

    token: mx.array
    output: Output


class Generation:
    """Generates one request on one target.

    Args:
        target: the model whose distribution is the answer.
        drafter: bound to the target; None decodes plainly.
        request: what to generate.
        prefixes: where beginnings of prompts come from, and where this conversation goes by `keep`.
        experience: what earlier generations learnt about the drafter; this one adds to it.

    Attributes:
        chunk: tokens of the prompt that a step reads.
        alone: no other generation takes turns with this one; the times of its rounds are its own.

    Raises:
        ContextOverflow: the prompt leaves no room for a token.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        request: Request,
        prefixes: PrefixCache | None = None,
        experience: Experience | None = None,
    ) -> None:
        room = target.context_length - len(request.prompt)
        if room < 1:
            raise ContextOverflow(len(request.prompt), target.context_length)
        self.stats = Stats(prompt_tokens=len(request.prompt))
        self.tokens: list[int] = list(request.prompt)
        self.chunk = PREFILL_CHUNK
        self.alone = True
        self._was_alone = True
        self._target = target
        self._drafter = drafter
        self._request = request
        self._max_tokens = min(room, request.max_tokens or room)
        self._greedy = request.sampling.greedy
        self._history = History(request.sampling, request.prompt, target.vocab_size)
        self._uniforms = Uniforms(request.seed)
        self._num_draws = 0
        self._prefixes = prefixes
        self._cache = target.new_cache()
        auto = drafter if isinstance(drafter, Auto) else None
        if auto is not None:
            auto.prepare(request.kind, plain=request.width is None)
        self._taps = drafter.tap_layers if drafter else ()
        self._state: Any = drafter.new_state() if drafter else None
        self._begin()
        experience = experience or Experience()
        self._width: WidthPolicy
        if auto is not None:
            assert self._state is not None
            self._width = auto.begin(self._state, request.kind, request.width)
        elif request.width is None and drafter is not None:
            self._width = AdaptiveWidth(experience, request.kind)
        else:
            self._width = FixedWidth(request.width or 0, experience.drawing)
        self._unobserved: list[tuple[int, mx.array | None]] = []
        self._asked = 0  # drafts asked for in this round
        self._next: _Step | None = None
        self._logits: mx.array | None = None  # the round's, where logprobs are wanted
        self._begun = self._started = time.perf_counter()
        self._prefilled: float | None = None

    def step(self) -> Event:
        """Read one chunk of the prompt, or run one round."""
        if self._cache.num_tokens < len(self._request.prompt) - 1:
            return self._prefill()
        if self._prefilled is None:
            self._prefilled = time.perf_counter()
            self.stats.prefill_s = self._prefilled - self._started
        return self._round()

    def begun(self) -> Prefilled:
        """What of the prompt need not be read."""
        return Prefilled(self._cache.num_tokens, len(self._request.prompt) - 1)

    def run(self) -> Iterator[Event]:
        """All steps; the last event is `Finished`."""
        while (reason := self.finish_reason()) is None:
            yield self.step()
        self.keep()
        yield Finished(reason, self.stats)

    def finish_reason(self) -> FinishReason | None:
        """Why no further round is due; None while one is."""
        if self.stats.generated_tokens and self.tokens[-1] in self._request.stop_ids:
            return "stop"
        return "length" if self._remaining == 0 else None

    def keep(self) -> None:
        """Leave the conversation, as far as it was read, to the prefix cache; the last call."""
        if self._prefixes is None or not self._cache.num_tokens:
            return
        self._catch_up()
        reads_taps = self._drafter is not None and bool(self._taps)
        conversation = Conversation(
            tokens=np.array(self.tokens, dtype=np.int32),
            cache=self._cache,
            checkpoints=self._keeping.made,
            drafter=self._drafter if reads_taps else None,
            state=self._state if reads_taps else None,
        )
        settle(conversation)
        self._prefixes.keep(conversation)

    def _begin(self) -> None:
        """Take over what an earlier conversation has in common with the prompt."""
        prompt, wanted = self._request.prompt, self._prefixes is not None
        reused = self._prefixes.take(prompt, self._drafter) if self._prefixes else None
        if reused is None:
            self._keeping = Keeping(self._cache, wanted=wanted)
            return
        self._cache = reused.cache
        self._keeping = Keeping(reused.cache, reused.checkpoints, wanted=wanted)
        self.stats.cached_tokens = reused.cache.num_tokens
        if self._taps:
            self._state = reused.state
        else:
            self._observe(list(prompt[1 : reused.cache.num_tokens + 1]), None)

    @property
    def _remaining(self) -> int:
        return self._max_tokens - self.stats.generated_tokens

    def _prefill(self) -> Prefilled:
        prompt, start = self._request.prompt, self._cache.num_tokens
        last = len(prompt) - 1
        end = self._keeping.chunk_end(start, last, self.chunk)
        output = self._target.forward(
            mx.array([prompt[start:end]]), self._cache, taps=self._taps, rows=1
        )
        self._observe(list(prompt[start + 1 : end + 1]), output.taps)
        drafter_arrays = self._state.arrays if self._drafter else []
        mx.eval(self._cache.arrays, drafter_arrays)
        mx.clear_cache()
        self._keeping.reached(end, last)
        return Prefilled(end, last)

    def _round(self) -> Committed:
        self._begun = time.perf_counter()
        begun_before = self._next is not None
        drafted = self._draft()
        proposal = drafted.proposal
        if proposal is None:
            num_accepted, committed = 0, self._plain()
        else:
            num_accepted, committed = self._speculate(proposal)
        if self._request.grammar is not None:
            self._request.grammar.commit(committed)
        now = time.perf_counter()
        # Waiting for a step's token takes the device on into the step after it, so that of a row of
        # plain steps the first seems long and the last short.
        begins_next = self._next is not None
        alone, self._was_alone = self.alone and self._was_alone, self.alone
        spent = now - self._begun - (drafted.seconds or 0.0)
        told = alone and begun_before == begins_next
        self._width.learn(
            Outcome(
                drafted.num_drafted,
                drafted.confidences,
                num_accepted,
                drafted.seconds if alone else None,
                spent if told else None,
                ahead=begun_before and begins_next,
            )
        )
        verify_s = spent if drafted.confidences else 0.0
        self._commit(drafted, num_accepted, committed, now, verify_s)
        num_accepted = min(num_accepted, len(committed))
        return Committed(
            committed, num_accepted, self.stats.copy(), self._logprobs(committed), self._asked
        )

    def _logprobs(self, committed: list[int]) -> list[TokenLogprob] | None:
        num_top, logits, self._logits = self._request.logprobs, self._logits, None
        if num_top is None or logits is None:
            return None
        return token_logprobs(logits[0, : len(committed)], committed, num_top)

    def _draft(self) -> Drafted:
        """As many drafts as the policy wants to see verified."""
        if self._drafter is None:
            return Drafted()
        if self._foreteller is not None:
            self._catch_up()
        limit, depth = self._most_drafts, len(self.tokens)
        width = self._asked = self._width.choose(limit, depth, greedy=self._greedy)
        if width == 0:
            return Drafted()
        if len(self._unobserved) > _FEW_UNOBSERVED:
            # What the drafter has to read after a wait is not the price of a draft.
            self._catch_up()
            mx.eval(self._state.arrays)
            self._begun = time.perf_counter()
        self._catch_up()
        return make_drafts(
            self._drafter,
            self._state,
            self._anchor(),
            width,
            self._draw,
            self._width,
            self._request.grammar,
            self._begun,
        )

    def _speculate(self, proposal: Proposal) -> tuple[int, list[int]]:
        drafts = proposal.tokens
        fed = mx.concatenate([self._anchor()[:, None], drafts], axis=1)
        output = self._target.verify(fed, self._cache, taps=self._taps)
        self._logits = output.logits
        verdict, odds = self._judge(proposal, output)
        parts = [verdict.num_accepted, verdict.token, drafts[0]]
        if odds is not None:
            parts.append((_FIXED_POINT * odds).astype(mx.int32))
        # The synchronisation at the round's end.
        num_accepted, token, *drafted = (int(x) for x in np.array(mx.concatenate(parts)))
        if odds is not None:
            sampled, argmax = drafted[proposal.width :]
            self._width.drawing.learn(sampled / _FIXED_POINT, argmax / _FIXED_POINT)
        committed = self._until_stop([*drafted[:num_accepted], token])
        self._target.rollback(self._cache, to=len(committed))
        self._history.commit(mx.array(committed))
        self._observe(committed, None if output.taps is None else output.taps[:, : len(committed)])
        return num_accepted, committed

    def _judge(self, proposal: Proposal, output: Output) -> tuple[Verdict, mx.array | None]:
        """The verdict, and of drawn drafts the chances of drawn and certain ones [2]."""
        logits = self._law(output.logits, proposal.tokens)
        if proposal.q is None:
            return accept_certain(proposal.tokens, self._choose(logits, len(self.tokens))), None
        at, width = len(self.tokens), proposal.width
        p = self._request.sampling.distribution(logits)
        verdict = accept_sampled(
            proposal.tokens,
            proposal.q,
            p,
            self._uniforms.at("accept", at, width)[None],
            self._uniforms.at("rest", at, 1),
        )
        return verdict, chances(p, proposal.q)

    def _law(self, logits: mx.array, drafts: mx.array | None = None) -> mx.array:
        """Penalties, bias and grammar: [1, 1+w, V] -> [1, 1+w, V] float32."""
        logits = self._history.penalise(logits, drafts)
        if self._request.grammar is None:
            return logits
        return restrict(logits, self._request.grammar.masks([] if drafts is None else ids(drafts)))

    def _choose(self, logits: mx.array, position: int) -> mx.array:
        """The target's token at each row of penalised logits [1, n, V] -> [1, n] int32."""
        if self._greedy:
            return mx.argmax(logits, axis=-1).astype(mx.int32)
        uniform = self._uniforms.at("token", position, logits.shape[1])
        return sample(self._request.sampling.distribution(logits), uniform[None])

    def _plain(self) -> list[int]:
        step = self._next or self._launch(self._anchor(), len(self.tokens))
        self._next = None
        self._foresee()
        if self._looks_ahead and self._remaining > 1:
            # The next step needs no decision, so the device never waits for Python.
            self._next = self._launch(step.token, len(self.tokens) + 1)
        token = step.token.item()
        assert isinstance(token, int)
        if self._drafter is not None:
            self._unobserved.append((token, step.output.taps))
            if len(self._unobserved) >= _MOST_UNOBSERVED:
                self._catch_up()
        self._logits = step.output.logits
        return [token]

    def _foresee(self) -> None:
        """Let the policy know what the drafter would say now, if that can be had for nothing."""
        if (drafter := self._foreteller) is not None:
            self._catch_up()
            self._width.foresee(drafter.foretell(self._state, self._most_drafts))

    @property
    def _foreteller(self) -> ForetellingDrafter | None:
        """The drafter, if what it would say can be had for nothing."""
        drafter = self._drafter
        if isinstance(drafter, ForetellingDrafter) and drafter.foretells(self._state):
            return drafter
        return None

    @property
    def _most_drafts(self) -> int:
        """A round commits one token more than it accepts drafts."""
        return min(self._drafter.max_width, self._remaining - 1) if self._drafter else 0

    @property
    def _looks_ahead(self) -> bool:
        plain = self._drafter is None or self._width.plain_next
        return plain and self._request.grammar is None

    def _launch(self, anchor: mx.array, position: int) -> _Step:
        output = self._target.forward(anchor[:, None], self._cache, taps=self._taps, rows=1)
        token = self._choose(self._law(output.logits), position)[:, 0]
        self._history.commit(token)
        mx.async_eval(token, *([] if output.taps is None else [output.taps]))
        return _Step(token, output)

    def _observe(self, next_tokens: list[int], taps: mx.array | None) -> None:
        if self._drafter is not None:
            self._drafter.observe(self._state, mx.array([next_tokens], dtype=mx.int32), taps)
            # The drafter's own work on it goes on while Python does other things.
            mx.async_eval(self._state.arrays)

    def _catch_up(self) -> None:
        """Show the drafter what plain steps committed: all at once, which costs the least."""
        if not self._unobserved:
            return
        tokens, taps = zip(*self._unobserved, strict=True)
        self._unobserved = []
        known = [each for each in taps if each is not None]
        self._observe(list(tokens), mx.concatenate(known, axis=1) if known else None)

    def _anchor(self) -> mx.array:
        return mx.array([self.tokens[-1]], dtype=mx.int32)

    def _draw(self, logits: mx.array) -> tuple[mx.array, mx.array | None]:
        if self._width.way != "sampled":
            return likeliest(logits)
        q = self._request.sampling.distribution(logits)
        uniform = self._uniforms.at("draft", self._num_draws, q.size // q.shape[-1])
        self._num_draws += uniform.size
        return sample(q, uniform.reshape(q.shape[:-1])), q

    def _until_stop(self, committed: list[int]) -> list[int]:
        """Up to the first stop token; what lies beyond is not said, and not kept in caches."""
        for index, token in enumerate(committed):
            if token in self._request.stop_ids:
                return committed[: index + 1]
        return committed

    def _commit(
        self,
        drafted: Drafted,
        num_accepted: int,
        committed: list[int],
        now: float,
        verify_s: float,
    ) -> None:
        if not self.stats.generated_tokens:
            self.stats.time_to_first_token_s = now - self._started
        before = self.stats.generated_tokens // _CLEAR_EVERY
        self.stats.add_round(
            len(drafted.confidences),
            num_accepted,
            len(committed),
            num_drafted=drafted.num_drafted,
            parked=self._width.parked,
            draft_s=drafted.seconds or 0.0,
            verify_s=verify_s,
            arm=self._width.playing,
        )
        assert self._prefilled is not None
        self.stats.decode_s = now - self._prefilled
        self.tokens.extend(committed)
        if self.stats.generated_tokens // _CLEAR_EVERY != before:
            # As mlx-lm does: buffers of ever new sizes would pile up.
            mx.clear_cache()
