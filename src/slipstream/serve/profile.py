"""Record what the engine's process does with torch's profiler, on demand."""

import os
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from slipstream.serve.messages import Profiled

NO_FOLDER = "profiles have no folder to go to; start the server with --profile-dir DIR"


class Profiler:
    """At most one profile at a time; a trace for ui.perfetto.dev."""

    def __init__(self, folder: str | None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._running: profile | None = None

    def start(self) -> str | None:
        """Begin; a sentence where that cannot be."""
        if self._folder is None:
            return NO_FOLDER
        if self._running is not None:
            return "a profile is being recorded already; stop it first"
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._running = profile(activities=activities)
        self._running.start()
        return None

    def stop(self) -> Profiled:
        """End, and write the trace."""
        if self._folder is None or self._running is None:
            return Profiled(sentence="no profile is being recorded; POST /start_profile first")
        running, self._running = self._running, None
        running.stop()
        path = self._folder / f"slipstream-{os.getpid()}-{time.strftime('%Y%m%d-%H%M%S')}.trace.json.gz"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            running.export_chrome_trace(str(path))
        except OSError as error:
            return Profiled(sentence=f"the profile could not be written to {self._folder}: {error.strerror}")
        return Profiled(path=str(path))
