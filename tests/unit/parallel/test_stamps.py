"""Where a rank is, and that it moves."""

from slipstream.parallel.stamps import Stage, Stamps


def test_the_last_mark_is_what_is_read():
    stamps = Stamps()
    assert stamps.read() == (0, Stage.IDLE)
    stamps.begin(17)
    stamps.mark(Stage.VERIFY)
    assert stamps.read() == (17, Stage.VERIFY)


def test_a_rank_is_at_work_from_the_start_of_a_cycle_until_it_marks_idle():
    stamps = Stamps()
    assert not stamps.active
    stamps.begin(1)
    assert stamps.active
    stamps.mark(Stage.ACCEPT)
    assert stamps.active
    stamps.mark(Stage.IDLE)
    assert not stamps.active


def test_marking_the_same_stage_again_is_progress():
    stamps = Stamps()
    stamps.mark(Stage.LOAD)
    before = stamps.progress()
    assert stamps.progress() == before
    stamps.mark(Stage.LOAD)
    assert stamps.progress() != before
