"""Choose candidates and shape them into a tree (EAGLE-2, Li et al. 2024, sections 4.1 and 4.2).

Pure functions of scores; at a temperature the scores carry the same noise as the target's draw (Gumbel coupling).

Shape letters: S requests, V draft vocabulary, k topk, R rows, C candidates, N rows of the tree.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from slipstream.attention.tree import TokenTree
from slipstream.kernels.noise import gumbel_noise
from slipstream.verify.distribution import Sampling


def candidate_scores(
    logits_RV: Float[Tensor, "r v"], sampling: Sampling | None, positions_R: Int[Tensor, " r"], ids_V: Int[Tensor, " v"]
) -> Float[Tensor, "r v"]:
    """Scores that rank the draft's tokens for `positions_R`: logits, or log q / T plus the target's noise."""
    if sampling is None:
        return logits_RV
    noised_RV = logits_RV / sampling.temperatures_R[:, None] + gumbel_noise(sampling.seeds_R, positions_R, ids_V)
    return torch.where(sampling.sampled_R[:, None], noised_RV, logits_RV)


@dataclass(slots=True)
class Candidates:
    """Everything grown so far, level by level; parents stand before children."""

    tokens: list[Tensor]  # [S, k] then [S, k * k] each: target ids
    scores: list[Tensor]  # log of the path's probability under the draft
    parents: list[Tensor]  # index among all candidates, -1 for children of the root

    def joined(self) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, scores and parents [S, C]."""
        return torch.cat(self.tokens, 1), torch.cat(self.scores, 1), torch.cat(self.parents, 1)


@dataclass(frozen=True, slots=True)
class Frontier:
    """The k best nodes of the last level: the rows of the next draft step."""

    tokens_Sk: Tensor  # target ids
    scores_Sk: Tensor
    index_Sk: Tensor  # among all candidates
    parent_Sk: Tensor  # which node of the previous frontier each hangs below


def first_level(best_Sk: Tensor, tokens_Sk: Tensor) -> tuple[Candidates, Frontier]:
    """The root's children: log-probabilities, best first, and target ids (verify/shards.py chooses them)."""
    index_Sk = torch.arange(tokens_Sk.shape[1], device=tokens_Sk.device).expand(tokens_Sk.shape)
    roots_Sk = torch.full_like(tokens_Sk, -1)
    grown = Candidates(tokens=[tokens_Sk], scores=[best_Sk], parents=[roots_Sk])
    return grown, Frontier(tokens_Sk, best_Sk, index_Sk, torch.zeros_like(tokens_Sk))


def next_level(grown: Candidates, frontier: Frontier, logs: Tensor, tokens: Tensor) -> Frontier:
    """Grow every frontier node by its k best children; the k best of all are the next frontier.

    logs, tokens: [S, k, k] log-probabilities and target ids of each node's children.
    """
    topk = tokens.shape[1]
    paths = (logs + frontier.scores_Sk[..., None]).flatten(1)
    start = sum(level.shape[1] for level in grown.tokens)
    grown.tokens.append(tokens.flatten(1))
    grown.scores.append(paths)
    grown.parents.append(frontier.index_Sk.repeat_interleave(topk, dim=1))
    best_Sk, chosen_Sk = paths.topk(topk, dim=-1)
    return Frontier(tokens.flatten(1).gather(1, chosen_Sk), best_Sk, start + chosen_Sk, chosen_Sk // topk)


def best_tree(grown: Candidates, roots_S: Tensor, *, draft_tokens: int) -> TokenTree:
    """The `draft_tokens` candidates with the most probable paths, below their roots.

    A path is never more probable than its prefix and the sort is stable, so every chosen node's parent is chosen.
    """
    tokens_SC, scores_SC, parents_SC = grown.joined()
    chosen_SN = scores_SC.argsort(dim=1, descending=True, stable=True)[:, :draft_tokens].sort(dim=1).values
    num_requests, num_candidates = tokens_SC.shape
    row_of_SC = torch.zeros(num_requests, num_candidates + 1, dtype=torch.int64, device=tokens_SC.device)
    rows = torch.arange(1, draft_tokens + 1, device=tokens_SC.device).expand(num_requests, draft_tokens)
    row_of_SC.scatter_(1, chosen_SN + 1, rows)  # column 0 is the root's row 0
    parents_SN = row_of_SC.gather(1, parents_SC.gather(1, chosen_SN) + 1)
    sizes = [level.shape[1] for level in grown.tokens]
    device = tokens_SC.device
    depth_C = torch.cat([torch.full((size,), depth + 1, device=device) for depth, size in enumerate(sizes)])
    root_S1 = torch.zeros_like(roots_S)[:, None]
    return TokenTree(
        tokens_SN=torch.cat((roots_S[:, None], tokens_SC.gather(1, chosen_SN)), dim=1),
        parents_SN=torch.cat((root_S1 - 1, parents_SN), dim=1),
        depths_SN=torch.cat((root_S1, depth_C[chosen_SN]), dim=1),
        max_depth=len(sizes),
        is_chain=False,
        scores_SN=torch.cat((torch.zeros_like(scores_SC[:, :1]), scores_SC.gather(1, chosen_SN)), dim=1),
    )
