"""Drawn text follows its seed; stop tokens stop; log probabilities say what was drawn from."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence

import pytest

from porter.demo.bpe import EOS, SPECIAL
from porter.demo.engine import Engine

pytestmark = pytest.mark.engine

PromptOf = Callable[..., Sequence[int]]
DRAW = {"temperature": 1.0, "max_tokens": 16, "ignore_eos": True}


@pytest.fixture(scope="module")
def prompts(prompt_of: PromptOf) -> Sequence[Sequence[int]]:
    return [prompt_of(length, start) for length, start in ((5, 0), (20, 50), (140, 100), (7, 300))]


def test_the_same_seed_draws_the_same_text_alone_and_in_a_batch(
    engine: Engine, prompts: Sequence[Sequence[int]]
) -> None:
    seeds = (1, 2, 3, 2**64 - 1)
    sampling = [{**DRAW, "seq_seed": seed} for seed in seeds]
    batch = [completion.tokens for completion in engine.generate(prompts, sampling).completions]
    assert [completion.tokens for completion in engine.generate(prompts, sampling).completions] == batch
    alone = [engine.generate([p], s).completions[0].tokens for p, s in zip(prompts, sampling, strict=True)]
    assert alone == batch


def test_seeds_draw_different_texts(engine: Engine, prompts: Sequence[Sequence[int]]) -> None:
    answer = engine.generate([prompts[0]] * 8, [{**DRAW, "seq_seed": seed} for seed in range(8)])
    assert len({tuple(completion.tokens) for completion in answer.completions}) >= 7


def test_a_low_temperature_and_top_k_1_draw_the_greedy_text(engine: Engine, prompts: Sequence[Sequence[int]]) -> None:
    greedy = [c.tokens for c in engine.generate(prompts, {**DRAW, "temperature": 0}).completions]
    for changes in ({"top_k": 1}, {"temperature": 1e-3}, {"top_p": 1e-6}):
        assert [c.tokens for c in engine.generate(prompts, {**DRAW, **changes}).completions] == greedy, changes


def test_text_ends_at_the_stop_token_unless_told_otherwise(engine: Engine, prompts: Sequence[Sequence[int]]) -> None:
    forced = {**DRAW, "golden_token_ids": [9, 10, EOS, 11, 12], "max_tokens": 5}
    going_on, stopping = (
        engine.generate([prompts[0]], {**forced, "ignore_eos": ignore}).completions[0] for ignore in (True, False)
    )
    assert going_on.tokens == [9, 10, EOS, 11, 12] and going_on.finish_reason == "length"
    assert stopping.tokens == [9, 10, EOS] and stopping.finish_reason == "stop"


@pytest.mark.parametrize("count", [1, 3, 8, 20])
def test_the_likeliest_tokens_come_in_order_with_their_share(
    engine: Engine, prompts: Sequence[Sequence[int]], count: int
) -> None:
    for completion in engine.generate(prompts, {**DRAW, "seq_seed": 5, "top_logprobs": count}).completions:
        for token, logprob, top in zip(completion.tokens, completion.logprobs, completion.top, strict=True):
            shares = [share for _, share in top]
            assert len(top) == count and len({token for token, _ in top}) == count
            assert shares == sorted(shares, reverse=True)
            assert sum(map(math.exp, shares)) <= 1 + 1e-5
            assert dict(map(tuple, top)).get(token, logprob) == logprob


def test_a_prompts_log_probabilities_are_those_of_the_same_tokens_when_generated(
    engine: Engine, prompts: Sequence[Sequence[int]]
) -> None:
    for prompt in prompts[:2]:
        drawn = engine.generate([prompt], {**DRAW, "seq_seed": 9}).completions[0]
        whole = [*prompt, *drawn.tokens]
        scored = engine.generate([whole], {**DRAW, "max_tokens": 1, "prompt_logprobs": True}).completions[0]
        assert len(scored.prompt_logprobs) in (len(whole), len(whole) - 1)
        assert list(scored.prompt_logprobs[-len(drawn.tokens) :]) == list(drawn.logprobs)


def test_structured_output_follows_its_grammar(engine: Engine, prompts: Sequence[Sequence[int]]) -> None:
    """Masks of legal tokens, alone and beside requests without one, which they leave as they were."""
    digits = {"schema_type": "regex", "schema": "[0-9]{3}-[0-9]{2}"}
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    object_ = {"schema_type": "json", "schema": json.dumps(schema)}
    free = {**DRAW, "ignore_eos": False, "seq_seed": 3, "max_tokens": 24}
    sampling = [{**free, "so_args": digits}, free, {**free, "so_args": object_}, {**free, "temperature": 0, "so_args": digits}]
    completions = engine.generate(prompts, sampling).completions
    texts = [completion.text.removesuffix(SPECIAL[EOS]) for completion in completions]
    assert re.fullmatch(r"[0-9]{3}-[0-9]{2}", texts[0]) and re.fullmatch(r"[0-9]{3}-[0-9]{2}", texts[3])
    assert isinstance(json.loads(texts[2])["ok"], bool)
    assert {completion.finish_reason for completion in (completions[0], completions[2], completions[3])} == {"stop"}
    assert completions[1].tokens == engine.generate([prompts[1]], free).completions[0].tokens
