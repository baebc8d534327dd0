"""Checks and times of paged attention on a CUDA device.

Shape letters: T rows, H heads, G kv heads, K head width, S sequences, R rows of each, L slots, E pages of each, N keys.
"""

import random
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.bench.kernel_checks import error_of, expect, rows_of
from slipstream.bench.kernel_timing import Record, graph_ms
from slipstream.kernels.keys import Keys
from slipstream.kernels.paged import paged_attention
from slipstream.kernels.qkv import rotate_and_store
from slipstream.kernels.twins import NO_KEY, attention_twin, keys_of_row

PAGE = 16
HEADS = ((32, 8, 128), (9, 3, 64), (8, 2, 96), (8, 4, 256), (16, 1, 128))


def pool_of(
    num_slots: int, num_kv_heads: int, width: int, dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, Tensor]:
    """Random keys and values [L, G, K]."""
    shape = (num_slots, num_kv_heads, width)
    return torch.randn(shape, device="cuda").to(dtype), torch.randn(shape, device="cuda").to(dtype)


def scattered_pages(num_sequences: int, num_pages: int) -> Tensor:
    """A page table [S, E] in random order."""
    return torch.randperm(num_sequences * num_pages, device="cuda").view(num_sequences, num_pages).contiguous()


def seen_slots(keys: Keys) -> Tensor:
    """The slots that each row sees [T, N], in position order, NO_KEY beyond."""
    newest, pages = keys.newest.cpu(), keys.pages.cpu()  # sync: a check's reference is made on the host
    rows: list[Tensor] = []
    for sequence, row_newest in enumerate(newest):
        for row, last in enumerate(row_newest.tolist()):  # sync: on the host already
            committed = None if keys.committed is None else int(keys.committed[sequence])
            path = None if keys.paths is None else keys.paths[sequence, row].tolist()  # sync: as above
            found = keys_of_row(last, first=keys.first, window=keys.window, committed=committed, path=path)
            at = torch.tensor(found, dtype=torch.long)
            rows.append(pages[sequence][at // keys.page] * keys.page + at % keys.page)
    width = max(len(row) for row in rows) or 1
    table = torch.full((len(rows), width), NO_KEY)
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    return table.to("cuda")


def poison(pool: tuple[Tensor, Tensor], slots_TN: Tensor) -> tuple[Tensor, Tensor]:
    """NaN wherever no row may read."""
    kept = torch.zeros(pool[0].shape[0], dtype=torch.bool, device="cuda")
    kept[slots_TN[slots_TN != NO_KEY]] = True
    return (
        pool[0].masked_fill(~kept[:, None, None], float("nan")),
        pool[1].masked_fill(~kept[:, None, None], float("nan")),
    )


def check_random(record: Record, heads: tuple[int, int, int], *, longest: int, cases: int = 3) -> None:
    """Random lengths (none to `longest`), rows, windows and page orders, unread slots poisoned."""
    num_heads, num_kv_heads, width = heads
    for case in range(cases):
        num_rows, num_sequences = random.choice((1, 2, 6, 16)), random.choice((1, 3))
        most = random.choice((40, 300, longest))
        pages = scattered_pages(num_sequences, -(-longest // PAGE))
        ends = [random.choice((-1, 0, most - 1, random.randrange(most))) for _ in range(num_sequences)]
        newest = torch.tensor([[max(end - back, -1) for back in range(num_rows)][::-1] for end in ends], device="cuda")
        window = random.choice((None, 100))
        keys = Keys(pages=pages, page=PAGE, newest=newest, most=most, first=case % 2, window=window)
        queries = torch.randn(num_sequences * num_rows, num_heads, width, device="cuda").bfloat16()
        slots = seen_slots(keys)
        pool = poison(pool_of(pages.numel() * PAGE, num_kv_heads, width), slots)
        found = paged_attention(queries, *pool, keys)
        error = error_of(found, attention_twin(queries, *pool, slots))
        name = f"attention {heads}: {num_sequences} x {num_rows} rows, ends {ends}, window {window}"
        expect(record, name, error, 1e-2)


def check_alike(record: Record, heads: tuple[int, int, int], *, root: int) -> None:
    """A position's bits in a chain, alone, in a tree, in a batch and under a longer limit."""
    num_heads, num_kv_heads, width = heads
    num_rows, most = 16, root + 17
    pages = scattered_pages(2, -(-(most + 64) // PAGE))
    pool = pool_of(pages.numel() * PAGE, num_kv_heads, width)
    queries = torch.randn(2 * num_rows, num_heads, width, device="cuda").bfloat16()
    steps = torch.arange(num_rows, device="cuda")
    newest = torch.stack((root + steps, root - 3 + steps))
    both = paged_attention(queries, *pool, Keys(pages=pages, page=PAGE, newest=newest, most=most))

    def same(name: str, found: Tensor, rows: Sequence[int]) -> None:
        changed = sum(not torch.equal(one, both[row]) for one, row in zip(found, rows, strict=True))
        expect(record, f"attention {heads} at {root}: {name}, rows that change", changed, 0)

    def alone(rows: Sequence[int], limit: int = most) -> Tensor:
        keys = Keys(pages=pages[:1].contiguous(), page=PAGE, newest=newest[:1, list(rows)].contiguous(), most=limit)
        return paged_attention(queries[list(rows)].contiguous(), *pool, keys)

    for count in (1, 2, 3, 4, 6, 7, 8):
        same(f"{count} of its rows", alone(range(count)), range(count))
    same("a later row", alone([11]), [11])
    same("a limit of 32k", alone(range(4), 32_768), range(4))
    arrivals = torch.zeros(256, dtype=torch.int32, device="cuda")
    keys = Keys(pages=pages, page=PAGE, newest=newest, most=most)
    for _ in range(20):  # whoever ends last
        same("added by the last to end", paged_attention(queries, *pool, keys, arrivals=arrivals), range(32))
    listed = (pages[:, :, None] * PAGE + torch.arange(PAGE, device="cuda")).flatten(1).contiguous()
    same(
        "slots listed", paged_attention(queries, *pool, Keys(pages=listed, page=1, newest=newest, most=most)), range(32)
    )
    # a tree whose rows 0, 2, 4, .. are the chain and whose odd rows are other tokens beside them
    chain = torch.arange(0, num_rows, 2, device="cuda")
    paths = torch.full((1, num_rows, num_rows), -1, device="cuda")
    for row in range(num_rows):
        depth = row // 2
        paths[0, row, : depth + 1] = root + torch.cat((chain[:depth], torch.tensor([row], device="cuda")))
    tree_pool = (pool[0].clone(), pool[1].clone())
    for step in range(num_rows // 2):  # the chain's entry at root + step stands at address root + 2 * step in the tree
        for new, old in zip(tree_pool, pool, strict=True):
            new[slot_of(pages, root + 2 * step)] = old[slot_of(pages, root + step)]
    keys = Keys(
        pages=pages[:1].contiguous(), page=PAGE, newest=(root + torch.arange(num_rows, device="cuda") // 2)[None],
        most=most, committed=torch.tensor([root], device="cuda"), paths=paths,
    )  # fmt: skip
    tree_queries = queries[:num_rows].clone()
    tree_queries[chain] = queries[: len(chain)]
    same("in a tree", paged_attention(tree_queries, *tree_pool, keys)[chain], range(len(chain)))


def check_turning(record: Record, heads: tuple[int, int, int], *, root: int) -> None:
    """RoPE and the store inside attention: near the two kernels, and a row's bits and entries whatever its company."""
    num_heads, num_kv_heads, width = heads
    num_rows, most = 16, root + 17
    pages = 1 + scattered_pages(1, -(-(most + 64) // PAGE))
    pool = pool_of((int(pages.max()) + 1) * PAGE, num_kv_heads, width)
    qkv = rows_of(num_rows, (num_heads + 2 * num_kv_heads) * width)
    tables = (torch.randn(4096, width // 2, device="cuda"), torch.randn(4096, width // 2, device="cuda"))
    newest = (root + torch.arange(num_rows, device="cuda"))[None].contiguous()
    arrivals = torch.zeros(256, dtype=torch.int32, device="cuda")

    def turned(rows: range, over: tuple[Tensor, Tensor]) -> Tensor:
        some = newest[:, rows.start : rows.stop].contiguous()
        keys = Keys(pages=pages, page=PAGE, newest=some, most=most)
        return paged_attention(qkv[rows.start : rows.stop], *over, keys, tables_PF=tables, arrivals=arrivals, pdl=True)

    apart, inside = ((pool[0].clone(), pool[1].clone()) for _ in "ab")
    keys = Keys(pages=pages, page=PAGE, newest=newest, most=most)
    queries = rotate_and_store(qkv, keys, tables, apart, num_heads=num_heads)
    whole = turned(range(num_rows), inside)
    name = f"attention {heads} at {root}: turning inside"
    expect(record, f"{name}, rows", error_of(whole, paged_attention(queries, *apart, keys)), 1e-2)
    expect(record, f"{name}, keys", error_of(inside[0], apart[0]), 1e-2)
    expect(record, f"{name}, values", error_of(inside[1], apart[1]), 0)
    for rows in (range(1), range(3), range(4), range(7), range(11, 12), range(5, 9)):
        over = (inside[0].clone(), inside[1].clone()) if rows.start else (pool[0].clone(), pool[1].clone())
        found = turned(rows, over)
        changed = sum(not torch.equal(one, whole[row]) for one, row in zip(found, rows, strict=True))
        expect(record, f"{name}, {rows} that change", changed, 0)


def slot_of(pages: Tensor, address: int) -> Tensor:
    """The slot of an address of sequence 0."""
    return pages[0, address // PAGE] * PAGE + address % PAGE


def time_attention(record: Record, heads: tuple[int, int, int], *, small: bool) -> None:
    """One layer's attention, other keys each time, beside SDPA over contiguous keys without any mask."""
    num_heads, num_kv_heads, width = heads
    for context in (128,) if small else (128, 2048, 16_384):
        for num_sequences in (1, 4, 16):
            num_pages = -(-(context + 16) // PAGE)
            layer_bytes = 2 * 2 * num_sequences * context * num_kv_heads * width
            layers = max(2, min(64, (256 << 20) // layer_bytes))
            pages = scattered_pages(num_sequences, num_pages)
            pools = [pool_of(pages.numel() * PAGE, num_kv_heads, width) for _ in range(layers)]
            for num_rows in (1, 4, 6, 16):
                if record.left() < 20:
                    return
                queries = torch.randn(num_sequences * num_rows, num_heads, width, device="cuda").bfloat16()
                newest = context - 1 + torch.arange(num_rows, device="cuda").expand(num_sequences, -1).contiguous()
                keys = Keys(pages=pages, page=PAGE, newest=newest, most=context + num_rows)

                def ours(
                    pdl: bool, queries: Tensor = queries, keys: Keys = keys, pools: list[tuple[Tensor, Tensor]] = pools
                ) -> None:
                    for pool in pools:
                        paged_attention(queries, *pool, keys, pdl=pdl)

                name = f"attention {context} keys, {num_sequences} x {num_rows} rows"
                for pdl in (False, True):
                    ms = graph_ms(lambda: ours(pdl)) / layers  # noqa: B023 - called at once
                    record.rate(f"{name}{' pdl' if pdl else ''}", ms, layer_bytes, heads=heads)
            record.attempt(
                "sdpa", lambda p=pools, n=num_sequences, c=context, b=layer_bytes: time_sdpa(record, p, n, c, heads, b)
            )


def time_sdpa(
    record: Record,
    pools: list[tuple[Tensor, Tensor]],
    num_sequences: int,
    context: int,
    heads: tuple[int, int, int],
    layer_bytes: int,
) -> None:
    """torch's attention of one row over contiguous keys."""
    num_heads, num_kv_heads, width = heads
    query = torch.randn(num_sequences, num_heads, 1, width, device="cuda").bfloat16()

    def view(pool: Tensor) -> Tensor:
        return pool[: num_sequences * context].view(num_sequences, context, num_kv_heads, width).transpose(1, 2)

    def work() -> None:
        for keys, values in pools:
            F.scaled_dot_product_attention(query, view(keys), view(values), enable_gqa=True)

    name = f"  sdpa {context} keys, {num_sequences} x 1 rows, contiguous"
    record.rate(name, graph_ms(work) / len(pools), layer_bytes, heads=heads)
