"""Every rank walks a request's grammar by itself, over its part of the vocabulary; tokens are those of one rank."""

import pytest

from slipstream import LLM
from slipstream.config.grammar import choice, regex
from slipstream.config.placement import placement
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import speculation
from slipstream.engine.engine import Ending, Engine
from slipstream.flow.output import Answer
from slipstream.flow.request import Request
from tests.loopback_ranks import LoopbackRanks
from tests.tensor_parallel import Pair, write_pair
from tests.tiny_engine import NoStops
from tests.tiny_grammar import CONFIG, EOS, RAW, grammars
from tests.unit.text import tiny_tokenizer

ASKED = (
    SamplingParams(max_tokens=24, grammar=regex("[1-9][0-9]{2,20}(;| the end)")),
    SamplingParams(max_tokens=24, temperature=0.9, grammar=regex("the quick brown (fox|dog) jumps over the lazy dog")),
    SamplingParams(max_tokens=24, temperature=0.9, grammar=choice(["the quick", "the quick brown fox", "lazy"])),
    SamplingParams(max_tokens=12),
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    found = write_pair(tmp_path_factory.mktemp("pair"), vocab_size=CONFIG.vocab_size, draft_vocab_size=200)
    tiny_tokenizer.save(found.model, tokenizer=RAW)
    return found


def answers(engine: Engine) -> list[Answer]:
    for index, params in enumerate(ASKED):
        grammar = None if params.grammar is None else grammars().open(params.grammar)
        ending = Ending(stop_ids=(EOS,), matcher=NoStops(), grammar=grammar)
        engine.add(Request(id=index, prompt=(5, 6, 7 + index), params=params, seed=3), ending)
    found: dict[int, Answer] = {}
    while engine.busy:
        found |= {news.request: news.answer for news in engine.step() if news.answer is not None}
    return [found[index] for index in range(len(ASKED))]


@pytest.mark.parametrize(("tp", "draft_tp"), [(2, "1"), (2, "2"), (2, "replicated"), (4, "2")])
def test_ranks_follow_a_grammar_as_one_rank_does(pair: Pair, tp: int, draft_tp: str) -> None:
    wanted = answers(LLM(str(pair.model), draft=str(pair.draft), steps=0).engine)
    assert any(RAW.decode(each.tokens).startswith("the quick brown") for each in wanted)
    for shape in (speculation(3), speculation(3, 3, 8)):
        ranks = LoopbackRanks(pair, tp)
        ranks.place(placement(draft_tp, tp))
        try:
            found = answers(ranks.engine(shape))
        finally:
            ranks.close()
        assert [each.tokens for each in found] == [each.tokens for each in wanted]
        assert [each.finish_reason for each in found] == [each.finish_reason for each in wanted]
        assert sum(each.statistics.accepted for each in found) > 5
