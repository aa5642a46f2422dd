"""Plain decoding of many conversations at once, one row of a forward each.

A further row costs a sixth of the first one, so this is the way to write much. Rows never mix: every conversation gets
the tokens that it would get alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from hierchat.config import GenerationSettings
from hierchat.engine.decoding import Decoding, common_prefix, step_together
from hierchat.engine.runner import Runner


class Streams:
    """`count` conversations, numbered from 0, each a sequence of the runner."""

    def __init__(self, runner: Runner, count: int) -> None:
        self.count = count
        self._runner = runner
        self._sequences = [runner.open() for _ in range(count)]
        self._replies: dict[int, Decoding] = {}

    def start(self, stream: int, prompt: Sequence[int], settings: GenerationSettings) -> None:
        """A stream takes up another conversation, or the next turn of its own: what some stream has read of the prompt
        already is not read again. Raises decoding.PromptTooLong."""
        reply = Decoding(self._sequences[stream], prompt, settings, (), _no_text)
        self._take_over(stream, prompt[:-1])
        for _ in reply.read():
            pass
        self._replies[stream] = reply

    def stop(self, stream: int) -> None:
        """The reply is finished; the stream rests until its next start."""
        self._replies.pop(stream, None)

    def step(self) -> list[tuple[int, int]]:
        """One more token for every stream that writes: (stream, token). A reply that ends stops its stream."""
        writing = sorted(self._replies.items())
        if not writing:
            return []
        steps = step_together(self._runner, [reply for _, reply in writing])
        for stream, reply in writing:
            if reply.finish:
                self.stop(stream)
        return [(stream, step.tokens[0]) for (stream, _), step in zip(writing, steps, strict=True)]

    def close(self) -> None:
        """Give the sequences back."""
        for sequence in self._sequences:
            sequence.close()

    def _take_over(self, stream: int, prompt: Sequence[int]) -> None:
        """Forget what the stream holds beyond its longest common beginning with the prompt; where another stream has a
        longer one, take that over."""
        mine = self._sequences[stream]
        mine.rollback(common_prefix(mine.tokens, prompt))
        best = max(self._sequences, key=lambda other: common_prefix(other.tokens, prompt))
        shared = common_prefix(best.tokens, prompt)
        if shared > len(mine.tokens):
            mine.adopt(best, prompt[len(mine.tokens) : shared])


def _no_text(tokens: Sequence[int]) -> str:
    """Settings without stop strings need no text."""
    return ""
