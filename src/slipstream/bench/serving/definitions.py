"""What the fields of `slipstream bench serving` mean; where vLLM and SGLang have a name for it, theirs."""

from collections.abc import Mapping
from types import MappingProxyType

from slipstream.bench.definitions import DEFINITIONS
from slipstream.bench.serving.rows import PERCENTILES, STATISTICS

_SETTINGS = {
    "backend": "whose server it is, by /v1/models: slipstream, vllm, sglang, or openai for any other",
    "url": "the server's address",
    "endpoint": "completions or chat",
    "model_id": "the model that was asked for",
    "tokenizer_id": "null: tokens are counted by the server, not by a tokenizer here",
    "prompts": "a file of prompts, random words or random token ids; acceptance on random ones means nothing",
    "num_prompts": "requests of the run, warm-up excluded",
    "input_len": "words or token ids of each random prompt; null where the prompts are of a file",
    "max_tokens": "longest answer, tokens",
    "ignore_eos": "whether answers go on to max_tokens",
    "request_rate": "requests a second, Poisson arrivals; inf: each as soon as max_concurrency allows it",
    "burstiness": "shape of the gaps between arrivals; 1 is Poisson, the only one here",
    "max_concurrency": "most requests in flight; null for no limit. Waiting for a place counts as no request's time",
    "warmup": "requests before the run, which nothing here counts",
    "timeout_s": "longest time for one request, seconds",
    "seed": "of random prompts and arrivals; at temperature > 0, prompt i is sampled with seed + i",
    "extra_body": "fields that were added to every request",
    "client_hardware": "processor of the machine that sent the requests",
}
_COUNTS = {
    "duration": "from the first request sent to the end of the last, seconds",
    "completed": "requests that were answered to the end",
    "failed": "requests that were not",
    "failures": "failed requests by reason",
    "total_input_tokens": "tokens of the answered prompts, by the server's usage; null where it does not say",
    "total_output_tokens": "tokens of the answers",
    "output_tokens_counted_by": "`server`: its usage; `chunks`: it reports none, so chunks are counted, too few tokens",
    "request_throughput": "completed / duration, requests/s",
    "request_goodput": "answers that keep every --goodput / duration, requests/s; null without",
    "goodput": "the limits of goodput, ms; null for none",
    "input_throughput": "total_input_tokens / duration, tokens/s",
    "output_throughput": "total_output_tokens / duration, tokens/s",
    "total_throughput": "input and output tokens / duration, tokens/s (SGLang's name)",
    "total_token_throughput": "input and output tokens / duration, tokens/s (vLLM's name)",
    "output_throughput_per_user": "mean over answers of 1 / TPOT, tokens/s",
    "max_output_tokens_per_s": "most output tokens within one second of the run; null where chunks' tokens are unknown",
    "concurrency": "sum of the answers' times / duration: requests in flight, on average",
    "max_concurrent_requests": "most requests in flight at once",
    "tokens_per_chunk": "output tokens / chunks; speculation sends several tokens a chunk",
}
_QUANTITIES = {
    "ttft": "TTFT: from sending a request (a connection included where none is kept) to its first token",
    "tpot": "TPOT of an answer: (time to the last token - TTFT) / (tokens - 1)",
    "itl": "ITL as vLLM and SGLang have it: between two chunks of an answer, however many tokens each holds",
    "inter_token_latency": "the gap between two chunks shared out over the later one's tokens, once a token; null where"
    " those are unknown",
    "e2el": "the time from sending a request to its last token (vLLM's name)",
    "e2e_latency": "the time from sending a request to its last token (SGLang's name)",
}
_WORDS = {"mean": "mean", "median": "median", "std": "standard deviation", "max": "largest"}
_WORDS |= {f"p{each}": f"{each}th percentile" for each in PERCENTILES}
_LATENCIES = {
    f"{statistic}_{name}_ms": f"{_WORDS[statistic]}, ms, of {meaning}"
    for name, meaning in _QUANTITIES.items()
    for statistic in STATISTICS
}
_ACCEPTANCE = {
    "accept_length": "emitted / cycles, the target's own token (bonus) included, plain is 1; null: not reported",
    "accept_length_source": "where the server tells it, and how its definition was made ours",
    "spec_decode_acceptance_length": "vLLM's name for accept_length",
    "spec_decode_acceptance_rate": "vLLM's name for accept_rate, in percent",
    "spec_decode_num_drafts": "cycles of the run, as far as the source counts them",
    "spec_decode_draft_tokens": "drafted tokens that were verified in the run",
    "spec_decode_accepted_tokens": "of those, kept",
    "spec_decode_per_position_acceptance_rates": "vLLM's name for acceptance_up_to_position",
}
_CLIENT = {
    "client_lag_median_ms": "how late the client's own loop came round, median: times are no more exact than this",
    "client_lag_p99_ms": "the same, 99th percentile",
    "client_lag_max_ms": "the same, the longest",
    "client_cpu_share": "processor time of the client / duration; near 1 the client is what is measured",
}
_DETAILS = {
    "input_lens": "tokens of each prompt",
    "output_lens": "tokens of each answer; 0 where there is none",
    "ttfts": "TTFT of each request, seconds",
    "itls": "gaps between the chunks of each answer, seconds",
    "start_times": "when each request was sent, seconds from the start of the run",
    "errors": "why each request failed; empty where it did not",
}
_BARE = {
    "bare_cycle_ms": "median cycle of `bench latency` at this batch over the same contexts, no server, mean of runs"
    " before and after serving; null where the batch was left out there",
    "bare_cycle_before_ms": "the same, before",
    "bare_cycle_after_ms": "the same, after",
    "bare_tpot_ms": "bare_cycle_ms / accept_length of this run: what TPOT would be if serving cost nothing",
    "tpot_over_bare": "mean_tpot_ms / bare_tpot_ms - 1: what serving adds",
    "chunk_over_bare": "mean_itl_ms / bare_cycle_ms - 1: the same a cycle, seen from chunks",
    "decreed_accept_length": "tokens emitted a cycle, by decree, random weights",
}
SERVING_DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {**DEFINITIONS, **_SETTINGS, **_COUNTS, **_LATENCIES, **_ACCEPTANCE, **_CLIENT, **_DETAILS, **_BARE}
)
