"""What tune reads off few runs, what it leaves out, and how it chooses."""

import json
from pathlib import Path

import pytest
import torch

from slipstream.attention.tree import TokenTree
from slipstream.bench.tune import Tuned, per_round, probe_of
from slipstream.bench.tune_grid import (
    PLAIN_SETUP,
    Setup,
    best_setups,
    cost_bound,
    name_of,
    near_best,
    shape_named,
    shapes,
    worth_timing,
)
from slipstream.bench.tune_journal import Journal
from slipstream.bench.tune_plot import best_by_steps, text_curve
from slipstream.bench.tune_race import Choice, Race, choose, gains, unbeaten
from slipstream.bench.tune_rows import verdict
from slipstream.bench.tune_walks import Walks
from slipstream.config.speculation import PLAIN, speculation
from slipstream.draft.grow import Candidates, best_tree
from slipstream.verify.accept import Accepted, accept

FAST, FASTER = (Setup(shape=speculation(steps), placement="tp 1") for steps in (2, 3))


def grown(steps: int, topk: int, seed: int) -> Candidates:
    """Random candidates of three requests, grown as the draft grows them: children are less probable than parents."""
    draw = torch.Generator().manual_seed(seed)
    logs = -torch.rand(3, topk, generator=draw)
    found = Candidates(tokens=[torch.arange(topk).expand(3, topk)], scores=[logs], parents=[torch.full((3, topk), -1)])
    frontier, start = torch.arange(topk).expand(3, topk), topk
    for level in range(1, steps):
        paths = found.scores[-1].gather(1, frontier)[..., None] - torch.rand(3, topk, topk, generator=draw)
        before = 0 if level == 1 else start - topk * topk
        found.tokens.append(torch.arange(topk * topk).expand(3, -1) + 100 * level)
        found.scores.append(paths.flatten(1))
        found.parents.append((before + frontier).repeat_interleave(topk, dim=1))
        frontier, start = paths.flatten(1).topk(topk, dim=1).indices, start + topk * topk
    return found


def walked(tree: TokenTree, wanted: list[list[int]]) -> Accepted:
    """Accept as if the target had said these tokens, whatever stands before them."""
    targets_SN = torch.full_like(tree.tokens_SN, 9999)
    for request, tokens in enumerate(wanted):
        row = 0
        for token in tokens:
            targets_SN[request, row] = token
            below = [
                child
                for child in range(tree.num_rows)
                if tree.parents_SN[request, child] == row and tree.tokens_SN[request, child] == token
            ]
            if not below:
                break
            row = below[0]
    return accept(tree, targets_SN, torch.full((len(wanted),), tree.max_depth))


def some_path(tree: TokenTree, request: int, seed: int) -> list[int]:
    """Tokens from the root to some row."""
    row = 1 + seed % (tree.num_rows - 1)
    path = []
    while row > 0:
        path.insert(0, int(tree.tokens_SN[request, row]))
        row = int(tree.parents_SN[request, row])
    return path


@pytest.mark.parametrize("seed", range(20))
def test_a_large_trees_cycle_tells_what_every_smaller_tree_would_have_accepted(seed: int) -> None:
    steps, topk, roots_S = 4, 3, torch.zeros(3, dtype=torch.int64)
    candidates = grown(steps, topk, seed)
    large = best_tree(candidates, roots_S, draft_tokens=3 + 9 * 3)
    wanted = [some_path(large, request, seed * 7 + request * 5) for request in range(3)]
    smaller = [speculation(depth, topk, nodes) for depth in (2, 3, 4) for nodes in (4, 7, 12)]
    walks = Walks(smaller)
    walks.see(large, walked(large, wanted), [True, True, False])
    for shape in smaller:
        cut = Candidates(
            *(levels[: shape.steps] for levels in (candidates.tokens, candidates.scores, candidates.parents))
        )
        tree = best_tree(cut, roots_S, draft_tokens=shape.draft_tokens)
        emitted = walked(tree, wanted).counts_S[:2].sum()  # the third is close to its end and does not count
        assert walks.accept_lengths()[shape] == pytest.approx(float(emitted) / 2), name_of(shape)


def test_a_tree_without_scores_tells_nothing() -> None:
    tree = best_tree(grown(2, 2, 0), torch.zeros(3, dtype=torch.int64), draft_tokens=4)
    blind = TokenTree(
        tokens_SN=tree.tokens_SN, parents_SN=tree.parents_SN, depths_SN=tree.depths_SN, max_depth=2, is_chain=False
    )
    walks = Walks([speculation(2, 2, 4)])
    walks.see(blind, walked(blind, [[0], [0], [0]]), [True] * 3)
    assert walks.accept_lengths() == {}


def test_shapes_are_legal_distinct_and_cheap_ones_first() -> None:
    found = shapes([0, 1, 3], [1, 2], [2, 4, 40])
    assert [name_of(each) for each in found] == ["1x1x1", "1x2x2", "3x1x3", "3x2x4"]
    assert [shape_named(name_of(each)) for each in found] == list(found)


def test_the_probe_covers_its_family() -> None:
    assert name_of(probe_of((speculation(2), speculation(5)))) == "5x1x5"
    assert name_of(probe_of((speculation(2, 4, 8), speculation(4, 4, 16)))) == "4x4x32"
    assert name_of(probe_of((speculation(2, 2, 4),))) == "2x2x6"


def test_what_cannot_win_even_at_a_smaller_ones_cost_is_not_timed() -> None:
    chain, wide = speculation(3), speculation(3, 4, 12)
    lengths = {PLAIN: 1.0, chain: 2.5, wide: 2.6}
    assert worth_timing(wide, lengths, {})
    costs = {PLAIN: 10.0, chain: 12.0}
    assert cost_bound(wide, costs) == pytest.approx(11.4)
    assert worth_timing(wide, lengths, costs)  # 2.6 / 11.4 beats 2.5 / 12
    assert not worth_timing(wide, {**lengths, wide: 2.3}, costs)
    dear = speculation(3, 2, 8)  # within the wide one, which then costs as much at least
    assert not worth_timing(wide, {**lengths, dear: 2.55}, {**costs, dear: 20.0})


def test_plain_decoding_wins_ties_within_the_noise() -> None:
    rounds = [{PLAIN_SETUP: 100.0, FAST: 103.0, FASTER: 102.0}] * 3
    noisy = choose(rounds, [105.0, 105.0, 95.0], parts=3, least_noise=0.01)
    assert noisy.setup == PLAIN_SETUP
    assert noisy.noise == pytest.approx(5 / 102.5)
    calm = choose(rounds, [100.0, 100.1, 99.9], parts=3, least_noise=0.01)
    assert calm.setup == FAST
    assert calm.gains[FAST] == pytest.approx(1.03, abs=0.001)
    assert choose(rounds, [100.0] * 3, parts=3, least_noise=0.05).setup == PLAIN_SETUP


def test_the_most_promising_setups_are_confirmed_and_plain_is_none_of_them() -> None:
    predicted = {PLAIN_SETUP: 500.0, FAST: 100.0, FASTER: 120.0}
    assert best_setups(predicted, 1) == [FASTER]
    assert best_setups({PLAIN_SETUP: 500.0}, 3) == []


def test_only_setups_whose_cost_could_be_wrong_by_their_distance_are_timed_again() -> None:
    predicted = {PLAIN_SETUP: 500.0, FAST: 100.0, FASTER: 109.0}
    assert near_best(predicted, 5) == [FASTER, FAST]
    assert near_best({**predicted, FASTER: 120.0}, 5) == [FASTER]
    assert near_best({PLAIN_SETUP: 500.0}, 5) == []


def test_a_gain_weighs_the_parts_of_the_prompts_alike_and_forgets_one_disturbed_round() -> None:
    calm = [{PLAIN_SETUP: 100.0, FAST: 200.0}, {PLAIN_SETUP: 100.0, FAST: 128.0}]  # two parts
    disturbed = [{PLAIN_SETUP: 100.0, FAST: 20.0}, calm[1]]
    assert gains(calm, [], parts=2)[FAST] == pytest.approx(1.6)
    assert gains([*calm, *calm, *disturbed], [], parts=2)[FAST] == pytest.approx(1.6)
    assert gains(calm, [300.0, 100.0], parts=2)[FAST] == pytest.approx(1.28**0.5)


def test_more_rounds_tell_apart_what_few_do_not() -> None:
    rounds = [{PLAIN_SETUP: 100.0, FAST: 160.0, FASTER: 164.0}]
    assert unbeaten(rounds * 4, [], parts=1, noise=0.04) == [FASTER, FAST]
    assert unbeaten(rounds * 16, [], parts=1, noise=0.04) == [FASTER]


def test_a_race_goes_back_and_forth_and_chooses_among_those_still_in_it() -> None:
    ran: list[tuple[Setup, int, str]] = []

    def run(setup: Setup, number: int, suffix: str) -> dict[str, float]:
        ran.append((setup, number, suffix))
        lucky = 1.2 if setup == FAST and number < 2 else 1.0
        rate = {PLAIN_SETUP: 100.0, FAST: 150.0, FASTER: 160.0}[setup]
        return {"tokens_per_s": lucky * rate, "emitted": 30, "cycles": 10}

    race = Race(run, parts=1, least_noise=0.01)
    for _ in range(2):
        race.run_round([FAST, FASTER], both_ends=True)
    there = [(PLAIN_SETUP, 0, ""), (FAST, 0, ""), (FASTER, 0, ""), (PLAIN_SETUP, 0, " again")]
    assert ran == [*there, *((setup, 1, suffix) for setup, _, suffix in reversed(there))]
    assert not race.is_open
    assert race.choice().setup == FAST
    race.run_round([FASTER])  # whoever is left alone wins, whatever was measured of the others before
    assert race.choice().setup == race.choice().best == FASTER
    assert race.accept_lengths() == {PLAIN_SETUP: 1.0, FAST: 3.0, FASTER: 3.0}
    assert [len(each) for each in race.rates().values()] == [3, 2, 3]
    assert race.emitted == 90


def test_rounds_take_whole_batches() -> None:
    assert per_round(24, rounds=3, batch=1) == 8
    assert per_round(24, rounds=3, batch=16) == 16
    assert per_round(5, rounds=3, batch=4) == 4


def test_a_journal_measures_once_and_forgets_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path, {"model": "m"})
    assert journal.once("a", lambda: {"value": 1})["value"] == 1
    assert journal.once("a", lambda: {"value": 2})["value"] == 1
    with path.open("a") as file:
        file.write('{"key": "b", "val')
    again = Journal(path, {"model": "m"})
    assert (len(again), again.once("a", lambda: {"value": 3})["value"]) == (1, 1)
    assert again.once("b", lambda: {"value": 4})["value"] == 4
    assert [json.loads(line).get("key") for line in path.read_text().splitlines()] == [None, "a", "b"]
    with pytest.raises(ValueError, match="is the journal of another run: model other \\(there m\\)"):
        Journal(path, {"model": "other"})
    path.write_text("not a journal\n")
    with pytest.raises(ValueError, match="is not a journal of tune"):
        Journal(path, {"model": "m"})


def row(steps: int, speed: float, *, topk: int = 1, chosen: bool = False) -> dict:
    shape = {"steps": steps, "topk": topk, "draft_tokens": steps * topk}
    return {"batch": 1, **shape, "predicted_tokens_per_s": speed, "chosen": chosen, "gain_over_plain": None}


def test_the_curve_has_a_bar_for_each_number_of_steps_and_marks_plain_and_the_choice() -> None:
    rows = [row(0, 50.0), row(1, 80.0), row(2, 100.0), row(2, 90.0, topk=2, chosen=True), row(4, 25.0)]
    assert [each["topk"] for each in best_by_steps(rows, 1)] == [1, 1, 2, 1]
    lines = text_curve(rows, 1)
    assert len(lines) == 5
    assert lines[3].endswith("2x2x4 <- chosen")
    bars = [line[5:54] for line in lines[1:]]
    assert {bar.index("|") for bar in bars} == {round(50 / 90 * 48)}
    lengths = [bar.count("#") for bar in bars]
    assert lengths[3] < lengths[0] < lengths[1] < lengths[2]


@pytest.mark.parametrize(("noise", "conclusive"), [(0.02, True), (0.57, False)])
def test_a_disturbed_machine_makes_the_verdict_inconclusive(noise: float, conclusive: bool) -> None:
    choice = Choice(setup=FAST, best=FAST, gains={PLAIN_SETUP: 1.0, FAST: 1.67}, noise=noise)
    found = Tuned(choices={1: choice}, confirmed_accept_lengths={1: {FAST: 1.55}})
    said = verdict(found, 1)
    assert said.startswith("INCONCLUSIVE: the machine was disturbed") != conclusive
    assert "bs 1: --steps 2 --draft-tp 1: 1.67x plain decoding" in said
