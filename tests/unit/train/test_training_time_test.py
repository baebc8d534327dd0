"""The batched unroll against a draft that decodes each slot alone, with plain attention and its own keys."""

import math

import pytest
import torch

from slipstream.attention.interface import Attend, heads
from slipstream.train.unroll import unroll_drafted, unroll_forced
from tests.unit.train import parts


class OneSlot(Attend):
    """Attention of one slot's cycle: the true keys up to it, then every drafted key so far."""

    def __init__(self, keys, values, position):
        self.keys, self.values, self.position = list(keys), list(values), position

    def __call__(self, layer, qkv_RC, rope):
        q, k, v = heads(layer, qkv_RC, rope.at(torch.tensor([self.position])))
        if self.position >= len(self.keys):
            self.keys.append(k[0])
            self.values.append(v[0])
        group = layer.num_heads // layer.num_kv_heads
        keys = torch.stack(self.keys).repeat_interleave(group, dim=1)
        values = torch.stack(self.values).repeat_interleave(group, dim=1)
        scores = torch.einsum("hk,thk->ht", q[0], keys) / math.sqrt(layer.head_dim)
        return torch.einsum("ht,thk->hk", scores.softmax(-1), values).reshape(1, -1)


class Record(Attend):
    """The extend pass: keeps its true keys, by plain causal attention."""

    def __call__(self, layer, qkv_RC, rope):
        q, k, v = heads(layer, qkv_RC, rope.at(torch.arange(qkv_RC.shape[0])))
        self.keys, self.values = k, v
        group = layer.num_heads // layer.num_kv_heads
        scores = torch.einsum("thk,shk->hts", q, k.repeat_interleave(group, 1)) / math.sqrt(layer.head_dim)
        scores = scores.masked_fill(torch.ones(len(q), len(q)).triu(1).bool(), float("-inf"))
        out = torch.einsum("hts,shk->thk", scores.softmax(-1), v.repeat_interleave(group, 1))
        return out.reshape(len(q), -1)


def sequential(draft, tokens, features, slot, steps, choose):
    """Draft `steps` deep from one slot; choose(step, normed) gives the token after."""
    record = Record()
    hidden = draft.fuse(features[: slot + 1])
    out = draft(tokens[1 : slot + 2], hidden, record)
    normed, hidden = [out.normed_TD[-1:]], out.next_TD[-1:]
    attend = OneSlot(record.keys, record.values, slot)
    for step in range(1, steps):
        attend.position = slot + step
        out = draft(choose(step, normed[-1]), hidden, attend)
        normed.append(out.normed_TD)
        hidden = out.next_TD
    return torch.cat(normed)


@pytest.mark.parametrize("options", [{}, {"norm_output": True, "fc_norm": True}, {"norm_before_residual": True}])
def test_unrolled_steps_equal_a_sequential_draft_decode(options):
    target, draft, _ = parts.made(**options)
    tokens_BT, features = parts.some_features(target, num_sequences=2, num_tokens=12)
    forced = torch.stack(list(unroll_forced(draft, tokens_BT, features, 4))).view(4, 2, 12, -1)
    for sequence, slot in ((0, 0), (0, 5), (1, 7)):
        own = features.view(2, 12, -1)[sequence]
        tokens = tokens_BT[sequence]
        naive = sequential(draft, tokens, own, slot, 4, lambda step, _, t=tokens, s=slot: t[s + 1 + step][None])
        torch.testing.assert_close(forced[:, sequence, slot], naive, rtol=1e-5, atol=1e-5)


def test_drafted_steps_feed_the_drafts_own_choices():
    target, draft, vocabulary = parts.made()
    tokens_BT, features = parts.some_features(target, num_sequences=2, num_tokens=12)
    drafted = torch.stack(list(unroll_drafted(draft, tokens_BT, features, 4, ids_V=vocabulary.ids_V))).view(4, 2, 12)
    own = features.view(2, 12, -1)

    def choose(step, normed):
        return vocabulary.ids_V[draft.logits(normed).argmax(-1)]

    for sequence, slot in ((0, 3), (1, 9)):
        naive = sequential(draft, tokens_BT[sequence], own[sequence], slot, 4, choose)
        assert drafted[:, sequence, slot].tolist() == choose(0, naive).tolist()


def test_padding_changes_nothing():
    target, draft, _ = parts.made()
    tokens_BT, features = parts.some_features(target, num_sequences=1, num_tokens=10)
    short = torch.stack(list(unroll_forced(draft, tokens_BT, features, 3)))
    padded_tokens = torch.nn.functional.pad(tokens_BT, (0, 6))
    padded_features = torch.nn.functional.pad(features, (0, 0, 0, 6))
    long = torch.stack(list(unroll_forced(draft, padded_tokens, padded_features, 3)))
    torch.testing.assert_close(short[:, :6], long[:, :6], rtol=1e-5, atol=1e-5)
