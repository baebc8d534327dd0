"""The HTTP process's end of the socket: submit, abort, and hand out what the engine says."""

import asyncio
import contextlib
import traceback
from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Any

import msgspec

from slipstream.config.sampling import SamplingParams
from slipstream.serve.http.child import obituary, start_child
from slipstream.serve.http.errors import ApiError, bad_request, unavailable
from slipstream.serve.messages import (
    Abort,
    Accepted,
    AnswerId,
    CycleTimes,
    Failed,
    FromEngine,
    Load,
    Loading,
    News,
    Piece,
    Profiled,
    Ready,
    Refused,
    Report,
    StartProfile,
    Stop,
    StopProfile,
    Submit,
)
from slipstream.serve.wire import READ_BYTES, Frames, frame

RECENT_CYCLES = 256  # that are remembered
END_S = 10.0  # for the engine's process to end


class Phase(Enum):
    """Where the engine is in its life."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"


class Mailbox:
    """What the engine said of the answers of one HTTP request, until it is read."""

    def __init__(self) -> None:
        self._letters: deque[Any] = deque()
        self._arrived = asyncio.Event()

    def put(self, letter: Any) -> None:
        self._letters.append(letter)
        self._arrived.set()

    async def take(self) -> Any:
        """The oldest letter; an ApiError among them is raised."""
        while not self._letters:
            self._arrived.clear()
            await self._arrived.wait()
        letter = self._letters.popleft()
        if isinstance(letter, ApiError):
            raise letter
        return letter


class EngineClient:
    """Lives in the event loop's thread."""

    def __init__(self, load: Load, *, command: list[str] | None = None) -> None:
        """command: what the engine's process runs instead of slipstream's own; for tests."""
        self._load, self._command = load, command
        self.phase, self.loading = Phase.LOADING, Loading(stage="starting")
        self.info: dict[str, Any] = {}
        self.report: Report | None = None
        self.cycles: deque[CycleTimes] = deque(maxlen=RECENT_CYCLES)
        self.failure: Failed | None = None
        self.ended = asyncio.Event()  # the engine's process is gone, or of no more use
        self._boxes: dict[AnswerId, Mailbox] = {}
        self._profiles: deque[asyncio.Future[Profiled]] = deque()
        self._next_answer = 0
        self._encoder, self._decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(FromEngine)
        self._stopping = False

    async def start(self) -> None:
        """Start the process; returns at once, loading goes on."""
        self._process, sock = start_child(self._command)
        self.pid = self._process.pid
        self._reader, self._writer = await asyncio.open_connection(sock=sock)
        self._send(self._load)
        self._task = asyncio.create_task(self._listen(), name="engine")

    async def stop(self) -> None:
        """End the process in peace, or by force if it does not."""
        self._stopping = True
        self._send(Stop())
        try:
            await asyncio.wait_for(asyncio.to_thread(self._process.wait), END_S)
        except TimeoutError:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        self._writer.close()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            self._task.cancel()
            await self._task

    def check_ready(self) -> None:
        """Raises ApiError, status 503, unless requests can be answered."""
        if self.phase is Phase.LOADING:
            raise unavailable(f"the model is not ready yet: {self.loading.stage}", code="loading")
        if self.phase is Phase.FAILED:
            raise self._obituary()

    @contextlib.contextmanager
    def submitted(
        self, prompts: list[list[int]], params: SamplingParams, *, steps: int | None, priority: int
    ) -> Iterator[tuple[Mailbox, AnswerId]]:
        """Have prompts answered, each params.n times, in the order of ids from the one that is given; whatever has not
        ended when the block does is aborted.

        Raises:
            ApiError: the engine is not ready.
        """
        self.check_ready()
        box, first = Mailbox(), self._next_answer
        self._next_answer += len(prompts) * params.n
        answers = range(first, self._next_answer)
        for answer in answers:
            self._boxes[answer] = box
        for place, prompt in enumerate(prompts):
            submit = Submit(
                answer=first + place * params.n, prompt=prompt, params=params, steps=steps, priority=priority
            )
            self._send(submit)
        try:
            yield box, first
        finally:
            for answer in answers:
                if self._boxes.pop(answer, None) is not None:
                    self._send(Abort(answer=answer))

    def cut(self, error: ApiError) -> None:
        """End every answer in flight with an error."""
        for box in set(self._boxes.values()):
            box.put(error)

    async def profile(self, message: StartProfile | StopProfile) -> Profiled:
        """Start or stop a profile."""
        self.check_ready()
        future: asyncio.Future[Profiled] = asyncio.get_running_loop().create_future()
        self._profiles.append(future)
        self._send(message)
        return await future

    # ------------------------------------------------------------------ from the engine

    async def _listen(self) -> None:
        frames = Frames()
        try:
            while data := await self._reader.read(READ_BYTES):
                for payload in frames.push(data):
                    self._hear(self._decoder.decode(payload))
        except ConnectionError:
            pass
        except Exception:  # without this task nothing would ever be answered again
            traceback.print_exc()
            self._fail(Failed(sentence="what the engine's process says cannot be read; see above"))
        if self._stopping:
            return
        if self.failure is None:
            self._fail(Failed(sentence=await asyncio.to_thread(obituary, self._process, END_S)))
        self.ended.set()

    def _hear(self, message: Any) -> None:
        match message:
            case News(pieces=pieces, report=report):
                for piece in pieces:
                    self._deliver(piece)
                self._note(report)
            case Accepted(answer=answer):
                self._tell(answer, message)
            case Refused(answer=answer, sentence=sentence):
                self._tell(answer, bad_request(sentence))
            case Loading():
                self.loading = message
            case Ready(info=info):
                self.phase, self.info = Phase.READY, info
            case Failed():
                self._fail(message)
            case Profiled():
                self._profiles.popleft().set_result(message)

    def _deliver(self, piece: Piece) -> None:
        box = self._boxes.get(piece.answer)
        if box is None:
            return  # aborted
        if piece.end is not None:
            del self._boxes[piece.answer]
        box.put(piece)

    def _note(self, report: Report | None) -> None:
        if report is not None:
            self.report = report
            self.cycles.extend(report.recent)

    def _tell(self, answer: AnswerId, letter: Any) -> None:
        if answer in self._boxes:
            self._boxes[answer].put(letter)

    def _fail(self, failure: Failed) -> None:
        """Nothing will be answered any more."""
        self.phase, self.failure = Phase.FAILED, failure
        self.cut(self._obituary())
        self._boxes.clear()
        for future in self._profiles:
            if not future.done():
                future.set_exception(self._obituary())
        self._profiles.clear()

    def _obituary(self) -> ApiError:
        return unavailable(f"the engine has ended: {self.failure.sentence if self.failure else ''}", code="engine_dead")

    def _send(self, message: Any) -> None:
        if self.phase is not Phase.FAILED and not self._writer.is_closing():
            self._writer.write(frame(self._encoder.encode(message)))
