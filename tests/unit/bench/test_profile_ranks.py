"""A slower wire is found in the communication of every stage, over two gloo ranks."""

from tests.unit.bench.profiled import STAGES, opened, plan, quiet, split_delayed

DELAY_US = 8000.0  # far beyond what a busy machine adds to the quietest cycle


def test_a_slower_wire_is_communication_and_nothing_else() -> None:
    executor = opened(tp=2)
    try:
        main = plan(tp=2).main
        found = {us: split_delayed(executor, tp=2, us=us) for us in (0.0, DELAY_US)}
    finally:
        executor.close()
    cycles = {us: each.cycles[main] for us, each in found.items()}
    num_calls = {len(cycle.calls) for each in cycles.values() for cycle in each}
    assert num_calls == {3 + 1 + 3 + 1 + 17 + 1}  # extend, first choice, a step, its choice, verify, its choice
    names = {(call.label, call.role, call.name) for call in cycles[0.0][0].calls}
    assert ("verify", "target", "embedding") in names
    assert ("accept", "target", "best token") in names
    assert {name for label, role, name in names if label == "draft 2"} == {
        "embedding",
        "attention",
        "mlp",
        "best token",
    }
    before, after = (quiet(each) for each in cycles.values())
    wanted_ms = num_calls.pop() * DELAY_US / 1e3
    assert after.communication_ms - before.communication_ms >= 0.9 * wanted_ms
    for label in STAGES:
        assert after.stages_ms[label] - before.stages_ms[label] < 0.1 * wanted_ms, label
