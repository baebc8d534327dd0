"""How answers are drawn, and what ends them, from the command line."""

from dataclasses import dataclass
from typing import Annotated

from slipstream.cli.grammar import chosen_grammar
from slipstream.cli.panels import option
from slipstream.config.sampling import SamplingParams

SAMPLING = "Sampling"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How answers are drawn, and what ends them."""

    max_tokens: Annotated[int, option("Longest answer.", SAMPLING)] = 256
    temperature: Annotated[float, option("0 is greedy.", SAMPLING)] = 0.0
    top_p: Annotated[float, option("Smallest set of tokens with this probability; 1 is off.", SAMPLING)] = 1.0
    top_k: Annotated[int, option("The k likeliest tokens; 0 is off.", SAMPLING)] = 0
    min_p: Annotated[float, option("Tokens at least this likely beside the likeliest; 0 is off.", SAMPLING)] = 0.0
    seed: Annotated[int | None, option("Same seed, same answer; a random one if left out.", SAMPLING)] = None
    stop: Annotated[list[str] | None, option("A text that ends the answer; may be given several times.", SAMPLING)] = (
        None
    )
    ignore_eos: Annotated[bool, option("Go on to --max-tokens.", SAMPLING, "--ignore-eos")] = False
    n: Annotated[int, option("Answers to each prompt; answer i is drawn with seed + i.", SAMPLING, "--n")] = 1
    min_tokens: Annotated[int, option("Shortest answer: nothing ends it before.", SAMPLING)] = 0
    presence_penalty: Annotated[float, option("Off the score of tokens that the answer has; 0 is off.", SAMPLING)] = 0.0
    frequency_penalty: Annotated[float, option("The same, each time that they came; 0 is off.", SAMPLING)] = 0.0
    repetition_penalty: Annotated[
        float, option("Divides the score of tokens of prompt and answer; 1 is off.", SAMPLING)
    ] = 1.0
    logit_bias: Annotated[
        list[str] | None, option("ID=VALUE, added to a token's score; may be given several times.", SAMPLING)
    ] = None
    bad_words: Annotated[
        list[str] | None, option("A text that may not come; may be given several times.", SAMPLING, "--bad-word")
    ] = None
    json_schema: Annotated[
        str | None, option("The answer is JSON that this schema (or @FILE) describes.", SAMPLING)
    ] = None
    regex: Annotated[str | None, option("The answer is a text that this matches as a whole.", SAMPLING)] = None
    lark: Annotated[str | None, option("The answer follows this Lark grammar (or @FILE).", SAMPLING)] = None
    choice: Annotated[list[str] | None, option("The answer is one of these; may be given several times.", SAMPLING)] = (
        None
    )
    logprobs: Annotated[
        int | None, option("Log-probabilities with --json: this many tokens beside the chosen one.", SAMPLING)
    ] = None

    def params(self) -> SamplingParams:
        """The parameters of each request.

        Raises:
            ValueError: a value is out of range.
        """
        return SamplingParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            stop=tuple(self.stop or ()),
            ignore_eos=self.ignore_eos,
            n=self.n,
            min_tokens=self.min_tokens,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=dict(_bias_pair(each) for each in self.logit_bias or ()),
            bad_words=tuple(self.bad_words or ()),
            logprobs=self.logprobs,
            grammar=chosen_grammar(schema=self.json_schema, pattern=self.regex, grammar=self.lark, choices=self.choice),
        )


def _bias_pair(given: str) -> tuple[int, float]:
    """ID=VALUE.

    Raises:
        ValueError: it is not that.
    """
    token, _, value = given.partition("=")
    try:
        return int(token), float(value)
    except ValueError:
        raise ValueError(f"--logit-bias takes ID=VALUE, for example 42=-5, not {given!r}") from None
