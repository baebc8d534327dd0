"""One cycle's work, decided on the host by one rank."""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation
from slipstream.flow.request import RequestId


def bucket(count: int) -> int:
    """The size under which a batch's cost is kept: the lowest power of two that is no less."""
    return 1 << (count - 1).bit_length()


def capture_sizes(wanted: Sequence[int] | None, max_batch: int) -> tuple[int, ...]:
    """The batch sizes that cycles are captured for: those wanted, ascending, up to the first that holds `max_batch`;
    powers of two if nothing is said.
    """
    sizes = [1 << power for power in range(bucket(max_batch).bit_length())] if wanted is None else wanted
    beyond = [size for size in sizes if size >= max_batch]
    return (*(size for size in sizes if size < max_batch), *beyond[:1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One running request in a cycle."""

    request: RequestId
    root_token: int  # the last committed token: not yet run through the target
    root_position: int
    depth_limit: int  # how many drafted tokens may be accepted; 0 close to the request's end
    params: SamplingParams
    seed: int
    room: int = 1 << 30  # tokens that the answer may still get


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The rows of one cycle and the shape of what is drafted for them."""

    cycle: int  # filled by the engine: counts up
    rows: tuple[Row, ...]  # chosen by schedule
    speculation: Speculation  # already cut to the deepest row's limit
    grown: tuple[tuple[RequestId, tuple[int, ...]], ...] = ()  # pages that requests got for this cycle
