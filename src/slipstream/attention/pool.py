"""The KV tensors: one pool of slots a model, cut into pages by cache/.

Shape letters: N layers, S slots, G kv heads, K head width, T rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slipstream.flow.span import PageSpan
from slipstream.kernels.reference import KEY_BLOCK

NUM_ARRIVALS = 1 << 19  # tiles of columns of one attention kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRun:
    """Where the entries of one request live: entry i is slot slots[i], and base + i when base is set."""

    slots: Tensor
    base: int | None


class KVPool:
    """Keys and values of every layer, [N, S, G, K] each."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        pdl: bool | None = None,
    ) -> None:
        """pdl: have our kernels attend, and start before the one in front has ended; None: torch attends."""
        self.pdl = pdl
        self.arrivals = None if pdl is None else torch.zeros(NUM_ARRIVALS, dtype=torch.int32, device=device)
        # Whole blocks of keys are read past a request's end (masked), so a block of zeros follows the last page.
        shape = (num_layers, num_pages * page_size + KEY_BLOCK, num_kv_heads, head_dim)
        self.keys = zeros_on_demand(shape, dtype, device)
        self.values = zeros_on_demand(shape, dtype, device)
        self.keys_NGKS = self.keys.permute(0, 2, 3, 1).unbind(0)
        self.values_NGSK = self.values.transpose(1, 2).unbind(0)

    @property
    def device(self) -> torch.device:
        """Where the tensors live."""
        return self.keys.device

    @property
    def num_bytes(self) -> int:
        """Bytes of all keys and values."""
        return self.keys.nbytes + self.values.nbytes

    def store(self, layer: int, slots_T: Tensor, k_TGK: Tensor, v_TGK: Tensor) -> None:
        """Write one layer's new entries."""
        self.keys[layer].index_copy_(0, slots_T, k_TGK)
        self.values[layer].index_copy_(0, slots_T, v_TGK)

    def move(self, from_T: Tensor, to_T: Tensor) -> None:
        """Copy entries of all layers from slots to slots; reads finish before writes begin."""
        self.keys[:, to_T] = self.keys[:, from_T]
        self.values[:, to_T] = self.values[:, from_T]

    def read(self, layer: int, run: SlotRun, num_entries: int) -> tuple[Tensor, Tensor]:
        """Keys and values [num_entries, G, K] of entries 0..num_entries - 1; entries past the run are padding."""
        if run.base is not None:
            stop = run.base + num_entries
            return self.keys[layer, run.base : stop], self.values[layer, run.base : stop]
        slots = run.slots[:num_entries]
        padding = slots.new_zeros(num_entries - slots.shape[0])
        return self.gather(layer, torch.cat((slots, padding)))

    def views(self, layer: int, run: SlotRun, num_entries: int) -> tuple[Tensor, Tensor]:
        """The same, laid out for products: keys [G, K, num_entries] and values [G, num_entries, K]."""
        if run.base is None:
            keys, values = self.read(layer, run, num_entries)
            return keys.permute(1, 2, 0), values.transpose(0, 1)
        return self.keys_NGKS[layer].narrow(2, run.base, num_entries), self.values_NGSK[layer].narrow(
            1, run.base, num_entries
        )

    def gather(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values at any shape of slots: [..., G, K]."""
        flat = slots.flatten()
        shape = (*slots.shape, *self.keys.shape[2:])
        return self.keys[layer].index_select(0, flat).view(shape), self.values[layer].index_select(0, flat).view(shape)


def zeros_on_demand(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on a CPU the system backs them with memory only where they are written."""
    if device.type != "cpu" or dtype != torch.float32:
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(shape, dtype=np.float32))


def longer_run(run: SlotRun, pages: Sequence[int], page_size: int) -> SlotRun:
    """The same run with pages added at its end."""
    more = slot_run(PageSpan(pages=tuple(pages), page_size=page_size), run.slots.device)
    follows = run.base is not None and more.base == run.base + run.slots.shape[0]
    return SlotRun(slots=torch.cat((run.slots, more.slots)), base=run.base if follows else None)


def slot_run(span: PageSpan, device: torch.device) -> SlotRun:
    """Slots of a span of pages, in address order."""
    starts = torch.tensor(span.pages, device=device) * span.page_size
    slots = (starts[:, None] + torch.arange(span.page_size, device=device)).flatten()
    return SlotRun(slots=slots, base=span.pages[0] * span.page_size if span.contiguous else None)
