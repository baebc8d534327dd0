"""Time limits are for a machine with a core for everything that runs; a busier one gets so much longer."""

import os


def patience(seconds: float) -> float:
    """Seconds, times the work that waits for each core."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
