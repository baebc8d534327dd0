"""One JSON object a line on stderr for each request; its text is in it only where that was asked for."""

import json
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

from slipstream.serve.http.job import Choice, Job


class RequestLog:
    """Writes lines."""

    def __init__(self, *, prompts: bool, stream: TextIO | None = None, decode: Any = None) -> None:
        """prompts: whether texts may be written; decode: ids to text, for those."""
        self._prompts, self._stream, self._decode = prompts, stream, decode

    def event(self, name: str, **fields: Any) -> None:
        """Something happened."""
        line = {"time": round(time.time(), 3), "event": name, **fields}
        print(json.dumps(line), file=self._stream or sys.stderr, flush=True)

    def answered(self, path: str, *, status: int, seconds: float, job: Job | None, choices: Sequence[Choice]) -> None:
        """A request is over; 499: the client went first."""
        fields: dict[str, Any] = {"path": path, "status": status, "seconds": round(seconds, 4)}
        if job is not None:
            fields |= {
                "id": job.id,
                "stream": job.stream,
                "prompt_tokens": sum(map(len, job.prompts)),
                "completion_tokens": sum(choice.num_tokens for choice in choices),
                "finish_reasons": [choice.finish_reason for choice in choices],
            }
            fields |= self._speculation(choices)
            if self._prompts:
                fields["prompts"] = [self._decode(prompt) for prompt in job.prompts]
                fields["answers"] = ["".join(choice.text) for choice in choices]
        self.event("request", **fields)

    def _speculation(self, choices: Sequence[Choice]) -> dict[str, Any]:
        ends = [choice.end for choice in choices if choice.end is not None]
        cycles = sum(end.cycles for end in ends)
        return (
            {"cycles": cycles, "accept_length": round(sum(end.emitted for end in ends) / cycles, 3)} if cycles else {}
        )
