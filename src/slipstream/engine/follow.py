"""A rank other than 0: join the group, then do what rank 0 says until it says goodbye.

`main` is what spawned ranks run; under torchrun every rank but 0 comes here too.
"""

import signal
import sys
import threading
import traceback
from contextlib import suppress
from typing import NoReturn

from slipstream.engine.executor import ANSWERED
from slipstream.engine.join import join_group
from slipstream.parallel.channel import Goodbye
from slipstream.parallel.launch import Membership, ending_with_parent
from slipstream.parallel.spot import Spot, launched_spot
from slipstream.parallel.watchdog import GroupError
from slipstream.parallel.world import close_world
from slipstream.runner.rank import Rank


def follow(spot: Spot) -> int:
    """Serve rank 0 until it says goodbye; the process's exit code."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is rank 0's to hear
    try:
        with ending_with_parent():
            rank, membership = join_group(spot)
    except (GroupError, ValueError) as error:
        print(f"slipstream: rank {spot.rank}: {error}", file=sys.stderr)
        return 1
    try:
        _obey(rank, membership)
    except Exception as error:
        failure = str(membership.watchdog.blame(error))
        if failure.startswith(f"rank {spot.rank} "):  # else it only shows where another rank's failure was noticed
            traceback.print_exc()
        print(f"slipstream: rank {spot.rank}: {failure}", file=sys.stderr)
        return 1
    rank.close()
    membership.leave()
    with suppress(RuntimeError):  # rank 0 may be gone already
        close_world()
    return 0


def _obey(rank: Rank, membership: Membership) -> None:
    assert membership.follower is not None, "rank 0 does not follow"
    while True:
        order = membership.follower.hear()
        if isinstance(order, Goodbye):
            return
        if not isinstance(order, ANSWERED):
            rank.carry_out(order)
            continue
        try:
            answer = (rank.carry_out(order), None)
        except ValueError as error:
            answer = (None, str(error))
        membership.follower.answer(answer)


def main() -> NoReturn:
    """Run as a spawned process."""
    spot = launched_spot()
    if spot is None:
        raise SystemExit("slipstream.engine.follow is started by slipstream itself: use slipstream ... --tp N")
    raise SystemExit(follow(spot))


if __name__ == "__main__":
    main()
