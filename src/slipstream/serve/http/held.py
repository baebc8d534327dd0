"""Hold back from a stream what may turn out to be the beginning of a mark."""


def split_mark(text: str, mark: str) -> tuple[str, str]:
    """What of a text is certainly not the beginning of a mark at its end, and the rest."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-length:]):
            return text[:-length], text[-length:]
    return text, ""
