"""Split what a model thinks from what it answers: <think> ... </think> before the answer."""

from slipstream.serve.http.held import split_mark
from slipstream.serve.http.settings import ReasoningStyle

OPEN, CLOSE = "<think>", "</think>"


class ThinkSplitter:
    """Takes an answer's text piece by piece; gives (reasoning, content) as they become certain.

    Only the first thought is one, and only at the beginning; blanks around it belong to nobody.
    """

    def __init__(self, *, thinking: bool) -> None:
        """thinking: whether the prompt has opened a thought already."""
        self._thinking, self._answering = thinking, False
        self._held = ""
        self._blank = True  # nothing but blanks came since the last mark

    def push(self, text: str) -> tuple[str, str]:
        if self._answering and not self._blank:
            return "", text
        reasoning, content = "", ""
        self._held += text
        if not self._thinking and not self._answering:
            self._begin()
        if self._thinking:
            reasoning = self._think()
        if self._answering:
            content, self._held = self._without_blanks(self._held), ""
        return reasoning, content

    def finish(self) -> tuple[str, str]:
        """The rest, now that nothing follows."""
        rest, self._held = self._held, ""
        if self._thinking:
            return self._without_blanks(rest), ""
        return "", rest

    def _begin(self) -> None:
        """See whether the answer opens a thought, once that is certain."""
        found = self._held.lstrip()
        if found.startswith(OPEN):
            self._thinking, self._held = True, found[len(OPEN) :]
        elif found and not OPEN.startswith(found):
            self._answering, self._blank = True, False

    def _think(self) -> str:
        inside, mark, after = self._held.partition(CLOSE)
        if mark:
            reasoning = self._without_blanks(inside).rstrip()
            self._thinking, self._answering, self._blank, self._held = False, True, True, after
            return reasoning
        certain, _ = split_mark(self._held, CLOSE)
        certain = certain.rstrip()  # blanks before the mark are not known yet
        self._held = self._held[len(certain) :]
        return self._without_blanks(certain)

    def _without_blanks(self, text: str) -> str:
        if self._blank:
            text = text.lstrip()
            self._blank = not text
        return text


def thinks(style: ReasoningStyle, template: str) -> bool:
    """Whether a model's thoughts are to be split off."""
    return style is ReasoningStyle.THINK or (style is ReasoningStyle.AUTO and OPEN in template)


def opened(prompt: str) -> bool:
    """Whether a prompt ends inside a thought that the answer goes on with."""
    return prompt.rstrip().endswith(OPEN)
