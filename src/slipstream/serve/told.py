"""What the engine says of a request, as it is told to the HTTP process."""

from collections.abc import Sequence

from slipstream.flow.logprobs import Logprobs
from slipstream.flow.output import Answer, Progress
from slipstream.serve.messages import AnswerId, Chance, End, Piece, TokenChances


def piece_of(answer: AnswerId, news: Progress) -> Piece:
    return Piece(
        answer=answer,
        tokens=list(news.new_tokens),
        accepted=news.accepted,
        chances=_all_chances(news.logprobs),
        end=None if news.answer is None else end_of(news.answer),
        prompt=_all_chances(news.prompt_logprobs),
    )


def _all_chances(found: Sequence[Logprobs] | None) -> list[TokenChances] | None:
    return None if found is None else [chances_of(each) for each in found]


def chances_of(found: Logprobs) -> TokenChances:
    """The raw values: as the model has them, before bias, penalties, temperature and filters."""
    return TokenChances(
        chosen=Chance(token=found.chosen.token, logprob=found.chosen.raw),
        top=[Chance(token=each.token, logprob=each.raw) for each in found.top],
    )


def end_of(answer: Answer) -> End:
    statistics = answer.statistics
    return End(
        finish_reason=answer.finish_reason.value,
        num_prompt=answer.num_prompt,
        num_cached=answer.num_cached,
        preemptions=answer.preemptions,
        seed=answer.seed,
        cycles=statistics.cycles,
        proposed=statistics.proposed,
        emitted=statistics.emitted,
        histogram=list(statistics.histogram),
        prefill_s=answer.prefill_s,
        decode_s=answer.decode_s,
    )
