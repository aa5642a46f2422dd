"""A tokenizer's chat template, rendered by a process that can be ended, since a template is code of a stranger."""

from __future__ import annotations

import atexit
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hierchat.runtime import template_program
from hierchat.runtime.template_program import READY, Answer, most_bytes

Chat = list[dict[str, Any]]
"""Messages as templates take them."""
SECONDS, PATIENCE_SECONDS = 5, 60
"""Time of one request: of the processor, where the system counts that, and in all."""
THOUGHT_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Where templates look for the thought of an earlier reply."""
_LONGEST_REASON = 200


class PromptError(ValueError):
    """No prompt can be made of these messages; the text says what to do."""


class TemplateRefused(PromptError):
    """The template does not take these messages; it may take others."""


class TemplateStopped(PromptError):
    """The template cannot be used at all."""


class ChatTemplate:
    """Renders as transformers' apply_chat_template does, with the same text and tokens. A tokenizer without a template
    stands for one elsewhere, and writes messages in its own way."""

    def __init__(self, tokenizer: Any, model: str = "this model") -> None:
        self._tokenizer = tokenizer
        self._model = model
        self._control: dict[str, re.Pattern[str]] = {}
        """Patterns of control tokens, by template."""

    def text(self, chat: Chat, tools: Sequence[Mapping[str, Any]] = (), **variables: Any) -> str:
        """Render the prompt as text. Raises TemplateRefused, TemplateStopped."""
        if not self._tokenizer.chat_template:
            return str(self._tokenizer.apply_chat_template(chat, tokenize=False))
        given = [{key: value for key, value in message.items() if value is not None} for message in chat]
        return self._render(self._named(tools), given, list(tools), variables)

    def ids(self, chat: Chat, tools: Sequence[Mapping[str, Any]] = (), **variables: Any) -> list[int]:
        """Render the prompt's tokens. A control token in a message, tool or variable is plain text. Raises
        TemplateRefused, TemplateStopped."""
        if not self._tokenizer.chat_template:
            return list(self._tokenizer.apply_chat_template(chat)["input_ids"])
        from transformers.utils.chat_template_utils import mark_control_tokens

        template = self._named(tools)
        control = self._control_tokens(template)
        given = [{key: value for key, value in message.items() if value is not None} for message in chat]
        marked, said, more = (mark_control_tokens(one, control) for one in (given, list(tools), variables))
        text = self._render(template, marked, said, more)
        made = self._tokenizer(text, add_special_tokens=False, sanitize_control_tokens=True)
        return list(made["input_ids"])

    def require_usable(self) -> None:
        """Raise TemplateStopped where it cannot even render one question."""
        with suppress(TemplateRefused):  # it may want other messages
            self.ids([{"role": "user", "content": "?"}], add_generation_prompt=True)

    def _named(self, tools: Sequence[Mapping[str, Any]]) -> str:
        try:
            return str(self._tokenizer.get_chat_template(tools=list(tools) or None))
        except ValueError as error:
            raise TemplateStopped(
                f"None of the chat templates of {self._model} is the default one. Choose another model."
            ) from error

    def _render(self, template: str, chat: Chat, tools: list[Any], variables: Mapping[str, Any]) -> str:
        given = {
            **self._tokenizer.special_tokens_map,
            "add_generation_prompt": False,
            **variables,
            "messages": [_with_thought(message) for message in chat],
            "tools": tools or None,
            "documents": None,
        }
        return self._asked({"template": template, "variables": given})

    def _control_tokens(self, template: str) -> re.Pattern[str]:
        """Find control tokens as transformers does: special tokens, and of others those that the template writes or the
        tokenizer names."""
        if template not in self._control:
            named = self._tokenizer.chat_control_tokens
            written = self._asked({"template": template}) if named is None else ""
            found = []
            for token in self._tokenizer.added_tokens_decoder.values():
                text = token.content
                used = text in named if named is not None else text in written and not text.isspace()
                found += [text] if token.special or used else []
            found.sort(key=len, reverse=True)
            self._control[template] = re.compile("|".join(map(re.escape, found)) or "(?!)")
        return self._control[template]

    def _asked(self, request: Mapping[str, Any]) -> str:
        answer = _renderer.ask(request)
        if (text := answer.get("text")) is not None:
            return text
        ((kind, reason),) = answer.items()
        reason = " ".join(reason.split())[:_LONGEST_REASON].rstrip(".")
        its = f"The chat template of {self._model}"
        if kind == "refused":
            raise TemplateRefused(
                f"{its} does not take this chat: {reason}. Begin a new chat, or choose another model."
            )
        took = {"text": "wrote too much text", "memory": "took too much memory"}
        why = {
            "broken": f"cannot be read: {reason}",
            "unsafe": f"was stopped, for it reaches for what is not its own: {reason}",
            "too_much": f"was stopped, for it {took.get(reason, f'computed for more than {SECONDS} seconds')}",
        }
        raise TemplateStopped(f"{its} {why[kind]}. Choose another model, or another file of this one.")


def _with_thought(message: dict[str, Any]) -> dict[str, Any]:
    """Put the thought of an earlier reply wherever a template may look for it."""
    thought = next((message[key] for key in THOUGHT_FIELDS if message.get(key) is not None), None)
    return message if thought is None else {"thinking": thought, **message, "reasoning_content": thought}


class _TemplateProcess:
    """The process, which starts with the first request, and anew after one that went wrong."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def ask(self, request: Mapping[str, Any]) -> Answer:
        """Have one request answered at a time."""
        line = json.dumps(request).encode() + b"\n"
        try:
            with self._lock:
                found: Answer = json.loads(self._exchange(line))
        except ValueError:  # it was ended at a bound, in the middle or before
            return {"too_much": "time"}
        return found

    def _exchange(self, line: bytes) -> bytes:
        process = self._running()
        assert process.stdin
        assert process.stdout
        patience = threading.Timer(PATIENCE_SECONDS, process.kill)
        patience.daemon = True
        patience.start()
        answer = b""
        try:
            process.stdin.write(line)
            process.stdin.flush()
            answer = process.stdout.readline(most_bytes(line) + 1)
        except OSError:
            pass
        finally:
            patience.cancel()
            if not answer.endswith(b"\n") or b'"too_much"' in answer[:12]:
                self._end()
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process and self._process.poll() is not None:
            self._end()  # something else ended it
        if not self._process:
            package = str(Path(__file__).parents[2])
            path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
            self._process = subprocess.Popen(
                # -P: no module of the folder that hierchat was started in
                [sys.executable, "-P", "-m", template_program.__name__, str(SECONDS)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
            )
            assert self._process.stdout
            if self._process.stdout.readline() != READY:
                self._end()
                raise RuntimeError(f"{template_program.__name__} does not start")
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process:
            process.kill()
            process.communicate()

    def close(self) -> None:
        """End the process, in the middle of a request too."""
        if self._process:
            self._process.kill()


_renderer = _TemplateProcess()
