"""Writes the replies: many conversations at once, each kept as a line of JSON as soon as it is finished."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hierchat.config import GenerationSettings
from hierchat.engine.loops import loop_at_end
from hierchat.learning.templates import REPLY, Script
from hierchat.makers.seeds.streams import Streams
from hierchat.runtime.prompt import MessageTooLong, PromptBuilder, Said

MOST_TOKENS = 256
"""Of a reply."""


@dataclass(slots=True)
class _Talk:
    """A conversation that a stream is holding."""

    script: Script
    said: list[Said] = field(default_factory=list)
    replies: list[list[int]] = field(default_factory=list)


class WorkFile:
    """What is finished, one conversation a line. A line that is half there does not count."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def mend(self) -> None:
        """Drops the line that a crash cut off; nobody else may be writing."""
        os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)

    def rows(self) -> Iterator[dict[str, Any]]:
        """What is there, in the order in which it was written."""
        with self.path.open(encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("\n"):
                    yield json.loads(line)

    def add(self, script: Script, replies: list[list[int]]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**asdict(script), "replies": replies}) + "\n")


class Writer:
    """Holds conversations in streams. `tell` hears of tokens that were written and conversations that
    were finished; it returns whether to go on."""

    def __init__(
        self,
        prompts: PromptBuilder,
        end_ids: Collection[int],
        streams: Streams,
        file: WorkFile,
        tell: Callable[[int, int], bool],
    ) -> None:
        self._prompts = prompts
        self._decode = prompts.tokenizer.decode
        self._end_ids = end_ids
        self._streams = streams
        self._file = file
        self._tell = tell
        self._talks = dict[int, _Talk]()

    def write(self, scripts: Iterable[Script]) -> None:
        """All of them, as many at a time as there are streams; each is added to the file when it is finished."""
        waiting = iter(scripts)
        for stream in range(self._streams.count):
            self._begin(stream, waiting)
        going = True
        while self._talks and going:
            written = self._streams.step()
            finished = sum(self._take(stream, token) for stream, token in written)
            for stream in range(self._streams.count) if finished else ():
                if stream not in self._talks:
                    self._begin(stream, waiting)
            going = self._tell(len(written), finished)

    def _begin(self, stream: int, waiting: Iterator[Script]) -> None:
        """The stream takes up the next conversation whose first prompt fits."""
        for script in waiting:
            talk = _Talk(script)
            if self._ask(stream, talk):
                self._talks[stream] = talk
                return

    def _ask(self, stream: int, talk: _Talk) -> bool:
        """The next turn of a conversation; False where there is none, or it does not fit."""
        turn = len(talk.replies)
        if turn == len(talk.script.turns):
            return False
        text = talk.script.turns[turn]
        if turn and REPLY in text:
            text = text.replace(REPLY, self._decode(talk.replies[-1], skip_special_tokens=True))
            talk.said = []
        talk.said.append(Said("user", text))
        try:
            prompt = self._prompts.build(talk.said, MOST_TOKENS, self._end_ids)
        except MessageTooLong:
            return False
        settings = GenerationSettings(temperature=talk.script.temperature, seed=talk.script.seed)
        self._streams.start(stream, prompt.ids, settings)
        talk.replies.append([])
        return True

    def _take(self, stream: int, token: int) -> bool:
        """A reply gains a token; whether that finished its conversation."""
        talk = self._talks[stream]
        reply = talk.replies[-1]
        reply.append(token)
        repeated = loop_at_end(reply)
        if not repeated and token not in self._end_ids and len(reply) < MOST_TOKENS:
            return False
        del reply[len(reply) - repeated :]
        self._streams.stop(stream)
        talk.said.append(Said("assistant", self._decode(reply), tuple(reply)))
        if self._ask(stream, talk):
            return False
        self._file.add(talk.script, talk.replies)
        del self._talks[stream]
        return True
