"""Training learns, stops and resumes."""

import pytest
import torch

from slipstream.train.batches import epoch_plan
from slipstream.train.journal import Journal, read_journal
from slipstream.train.loop import Trainer
from slipstream.train.options import LoopOptions, LossOptions
from slipstream.train.rate import learning_rate
from tests.unit.train import parts


def trainer(path, steps=12, **loop):
    target, draft, vocabulary = parts.made()
    return Trainer(
        draft=draft,
        target=target,
        vocabulary=vocabulary,
        conversations=parts.conversations(10),
        loss=LossOptions(steps=2),
        loop=LoopOptions(steps=steps, batch_tokens=64, lr=3e-3, log_every=1, **loop),
        journal=Journal(path / "train.jsonl", say=lambda text: None),
        state_path=path / "state.pt",
    )


def losses(path):
    return [record["loss"] for record in read_journal(path / "train.jsonl", "step")]


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    trainer(tmp_path / "whole").run()
    trainer(tmp_path / "halves").run(until_step=5)
    second = trainer(tmp_path / "halves")
    second.resume()
    assert second.progress.step == 5
    second.run()
    assert losses(tmp_path / "halves") == pytest.approx(losses(tmp_path / "whole"), abs=1e-4)


def test_the_loss_falls(tmp_path):
    trainer(tmp_path, steps=80).run()
    found = losses(tmp_path)
    assert sum(found[-5:]) < 0.9 * sum(found[:5])


def test_a_gradient_that_is_not_finite_is_skipped_and_counted(tmp_path):
    one = trainer(tmp_path, steps=2)
    before = {name: value.clone() for name, value in one.draft.named_parameters()}
    one.target.head.weight.data[:] = float("nan")
    one.run()
    assert one.progress.skipped == 2
    assert all(torch.equal(before[name], value) for name, value in one.draft.named_parameters() if value.requires_grad)


def test_only_one_budget_is_taken():
    with pytest.raises(ValueError, match="exactly one"):
        LoopOptions(steps=3, minutes=1.0)


def test_an_epoch_holds_every_conversation_once_within_the_budget():
    lengths = parts.conversations(50).lengths_C
    plan = epoch_plan(lengths, batch_tokens=96, seed=3, epoch=1)
    assert sorted(int(row) for rows in plan for row in rows) == list(range(50))
    assert all(len(rows) * -(-int(lengths[rows].max()) // 8) * 8 <= 96 for rows in plan)
    again = epoch_plan(lengths, batch_tokens=96, seed=3, epoch=1)
    assert [rows.tolist() for rows in plan] == [rows.tolist() for rows in again]


def test_the_learning_rate_warms_up_and_ends_at_its_floor():
    options = LoopOptions(steps=100, lr=1.0, warmup=0.1, final_lr=0.05)
    assert learning_rate(0.05, options) == pytest.approx(0.5)
    assert learning_rate(0.1, options) == pytest.approx(1.0)
    assert learning_rate(1.0, options) == pytest.approx(0.05)
