"""Everything concrete that an engine runs with; settled once at the door."""

from dataclasses import dataclass

from slipstream.config.speculation import Speculation

PAGE_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Sizes of the engine; see serve/settle.py for how they are chosen."""

    speculation: Speculation
    max_len: int  # prompt + answer, tokens
    max_batch: int = 16  # requests that run together
    page_size: int = PAGE_SIZE  # KV entries a page
    num_pages: int = 1024  # page 0 is scratch
    prefill_chunk: int = 512  # the fixed grid on which prompts are run
    prefix_cache: bool = True  # prompts that begin alike share pages
    max_pinned_pages: int = 0  # that pinned prompts may keep; no request is promised them
    draft_max_len: int | None = None  # tokens of context beyond which nothing is drafted; None = the target's context
    feature_ring: int = 32  # emitted positions that may wait for the draft's extend
    graphs: bool = True  # on CUDA, replay captured cycles where a batch allows it
    graph_sizes: tuple[int, ...] | None = None  # batches that are captured, ascending; None = powers of two
    run_ahead: bool = True  # launch the next captured cycle before the host has read what this one left
    synthetic_accept_length: float | None = None  # decree the accept length, to time cycles; None = accept what is so

    def __post_init__(self) -> None:
        if self.max_batch < 1:
            raise ValueError(f"max_batch must be 1 or more, not {self.max_batch}")
        if self.max_len < 2:
            raise ValueError(f"max_len must be 2 tokens or more, not {self.max_len}")
        if self.max_pinned_pages and not self.prefix_cache:
            raise ValueError("pinned prompts live in the prefix cache, and it is off; turn it on, or pin nothing")
        if self.draft_max_len is not None and self.draft_max_len < 1:
            raise ValueError(f"draft_max_len must be 1 token or more, not {self.draft_max_len}; leave it out")
        sizes = self.graph_sizes or ()
        if list(sizes) != sorted(set(sizes)) or any(size < 1 for size in sizes):
            raise ValueError(f"graph_sizes ascend from 1 or more, not {list(sizes)}; for example 1,2,4,8")
        wanted, most = self.synthetic_accept_length, self.speculation.steps + 1
        if wanted is not None and not 1 <= wanted <= most:
            raise ValueError(
                f"a synthetic accept length lies between 1 and steps + 1, here {most}, not {wanted}; raise steps or"
                " lower it"
            )
