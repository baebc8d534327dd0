"""Change the target's scores as requests ask, before a token is drawn: each row by the tokens on its own path.

The history of a row is the prompt, the answer so far and the path from the root to it, so a token is the one that plain
decoding would draw there. In order: logit_bias; repetition, frequency and presence penalty; bad words and min_tokens;
grammars.

Shape letters: T packed rows = S requests * N rows of the tree, D depth, V ids that this rank scores, P requests with
penalties, Q requests with bans, B biased ids and W bans of all requests, M tokens that bans look back on.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from slipstream.attention.tree import NO_ROW, TokenTree
from slipstream.parallel.cut import Shard
from slipstream.verify.distribution import Sampling, draw
from slipstream.verify.grammar import Masks, forbid
from slipstream.verify.history import ANY_TOKEN, NO_TOKEN, Bans, History, columns_of
from slipstream.verify.logprobs import Scores

Histories = Sequence[History | None]  # of the batch's requests; empty: none has one
INF = float("inf")


def draw_processed(
    logits_TV: Float[Tensor, "t v"],
    tree: TokenTree,
    histories: Histories,
    sampling: Sampling | None,
    positions_T: Int[Tensor, " t"],
    shard: Shard,
    masks: Masks | None = None,
) -> tuple[Int[Tensor, " t"], Scores | None]:
    """The target's token for each row of a batch's trees, and the scores where some request wants log-probabilities.

    The scores are changed in place. masks: of the rows that follow a grammar.
    """
    reported = any(each is not None and each.params.logprobs is not None for each in histories)
    raw_TV = logits_TV.clone() if reported else logits_TV
    if any(histories):
        process(logits_TV, histories, tree)
    if masks is not None:
        forbid(logits_TV, masks, shard)
    scores = Scores(raw_TV, logits_TV, sampling) if reported else None
    return draw(logits_TV, sampling, positions_T, shard), scores


def process(logits_TV: Float[Tensor, "t v"], histories: Histories, tree: TokenTree) -> None:
    """Change the scores of a batch's trees in place; a request without a history keeps its own."""
    scores_SNV = logits_TV.view(*tree.tokens_SN.shape, -1)
    _add_bias(scores_SNV, histories)
    penalised = [place for place, each in enumerate(histories) if each is not None and each.counts_2V is not None]
    banned = [place for place, each in enumerate(histories) if each is not None and each.bans is not None]
    if not penalised and not banned:
        return
    paths_SND = _below_root(tree)
    if penalised:
        _penalise(scores_SNV, histories, penalised, paths_SND)
    if banned:
        _ban(scores_SNV, histories, banned, paths_SND, tree.depths_SN)


def _below_root(tree: TokenTree) -> Tensor:
    """Tokens on the way to each row, from the root's child to itself: [S, N, D], NO_TOKEN beyond."""
    rows_SND = tree.paths()[..., 1:]
    tokens_SND = tree.tokens_SN[:, None].expand(-1, tree.num_rows, -1).gather(2, rows_SND.clamp(min=0))
    return torch.where(rows_SND == NO_ROW, NO_TOKEN, tokens_SND)


def _add_bias(scores_SNV: Tensor, histories: Histories) -> None:
    found = [(place, each.bias) for place, each in enumerate(histories) if each is not None and each.bias is not None]
    if not found:
        return
    columns_B = torch.cat([bias.columns_B for _, bias in found])
    values_B = torch.cat([bias.values_B for _, bias in found])
    owners_B = _owners([(place, bias.columns_B.shape[0]) for place, bias in found], columns_B.device)
    _add(scores_SNV, owners_B, columns_B, values_B[:, None].expand(-1, scores_SNV.shape[1]))


def _penalise(scores_SNV: Tensor, histories: Histories, places: Sequence[int], paths_SND: Tensor) -> None:
    """All columns by the counts up to the root; then those of a row's path once more, with what the path adds."""
    chosen = [each for place in places if (each := histories[place]) is not None]
    counts_P2V = torch.stack([each.counts_2V for each in chosen if each.counts_2V is not None])
    params = [each.params for each in chosen]
    rates = [(each.repetition_penalty, each.frequency_penalty, each.presence_penalty) for each in params]
    places_P = torch.tensor(places, device=scores_SNV.device)
    rates_P3 = torch.tensor(rates, dtype=torch.float32, device=scores_SNV.device)
    scores_PNV, paths_PND = scores_SNV[places_P], paths_SND[places_P]
    columns_PND, own_PND = columns_of(paths_PND, chosen[0].shard)
    same_PNDD = (columns_PND[..., None] == columns_PND[..., None, :]) & own_PND[..., None, :]
    added_PND = same_PNDD.sum(-1)  # of a column that stands for another rank's token, too: all writers agree
    num_places, num_rows, depth = columns_PND.shape
    flat_P2C = columns_PND.flatten(1)[:, None].expand(-1, 2, -1)
    counts_P2ND = counts_P2V.gather(2, flat_P2C).view(num_places, 2, num_rows, depth) + added_PND[:, None]
    on_path_PND = _penalised(scores_PNV.gather(2, columns_PND), counts_P2ND, rates_P3)
    all_PNV = _penalised(scores_PNV, counts_P2V[:, :, None], rates_P3)
    scores_SNV.index_copy_(0, places_P, all_PNV.scatter_(2, columns_PND, on_path_PND))


def _penalised(scores: Tensor, counts: Tensor, rates_P3: Tensor) -> Tensor:
    """Scores [P, N, any] by counts [P, 2, N or 1, any] of the answer and of prompt and answer."""
    repetition, frequency, presence = rates_P3[:, :, None, None].unbind(1)
    answered, everywhere = counts.unbind(1)
    repeated = torch.where(scores < 0, scores * repetition, scores / repetition)
    scores = torch.where(everywhere > 0, repeated, scores)
    return scores - frequency * answered - presence * (answered > 0)


def _ban(scores_SNV: Tensor, histories: Histories, places: Sequence[int], paths_SND: Tensor, depths_SN: Tensor) -> None:
    chosen = [each for place in places if (each := histories[place]) is not None]
    size = max(each.tail_M.shape[0] for each in chosen)
    bans = _joined([each.bans for each in chosen if each.bans is not None], size)
    counts = [0 if each.bans is None else each.bans.columns_W.shape[0] for each in chosen]
    device = scores_SNV.device
    index_W = _owners(list(enumerate(counts)), device)
    places_Q, answered_Q = torch.tensor([places, [each.num_answered for each in chosen]], device=device).unbind(0)
    depths_QN = depths_SN[places_Q]
    tails_QM = torch.stack([F.pad(each.tail_M, (size - each.tail_M.shape[0], 0), value=NO_TOKEN) for each in chosen])
    known_QNK = torch.cat((tails_QM[:, None].expand(-1, depths_SN.shape[1], -1), paths_SND[places_Q]), dim=2)
    last_QNM = depths_QN[..., None] + torch.arange(size, device=device)  # a tail ends with the root
    context_QNM = known_QNK.gather(2, last_QNM)
    before_W1M = bans.before_WM[:, None]
    meets_WN = ((context_QNM[index_W] == before_W1M) | (before_W1M == ANY_TOKEN)).all(-1)
    holds_WN = (answered_Q[:, None] + depths_QN)[index_W] < bans.until_W[:, None]
    values_WN = torch.where(meets_WN & holds_WN, -INF, 0.0)
    _add(scores_SNV, places_Q[index_W], bans.columns_W, values_WN)


def _joined(bans: Sequence[Bans], size: int) -> Bans:
    """Bans of several requests, all looking back on `size` tokens."""
    before = [F.pad(each.before_WM, (size - each.before_WM.shape[1], 0), value=ANY_TOKEN) for each in bans]
    columns_W, until_W = (torch.cat([each[field] for each in bans]) for field in (0, 2))
    return Bans(columns_W, torch.cat(before), until_W)


def _owners(counts: Sequence[tuple[int, int]], device: torch.device) -> Int[Tensor, " any"]:
    """Each place as many times as its count says."""
    places, repeats = zip(*counts, strict=True)
    times = torch.tensor(repeats, device=device)
    return torch.tensor(places, device=device).repeat_interleave(times, output_size=sum(repeats))


def _add(scores_SNV: Tensor, places_W: Tensor, columns_W: Tensor, values_WN: Tensor) -> None:
    """Add a value to one column of each row of a place; sums of zeros and infinities have no order."""
    _, num_rows, num_columns = scores_SNV.shape
    rows_WN = places_W[:, None] * num_rows + torch.arange(num_rows, device=scores_SNV.device)
    index_WN = rows_WN * num_columns + columns_W[:, None]
    scores_SNV.view(-1).scatter_add_(0, index_WN.flatten(), values_WN.flatten())
