"""Models that write what a test says, behind the real service, and the endpoint on a real port."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierchat.api.endpoint import Endpoint
from hierchat.chat.service import ChatService
from hierchat.config import GenerationSettings
from hierchat.drafting.proposer import Proposer
from hierchat.engine.engine import TARGET, Step
from hierchat.models.progress import Report
from hierchat.page.page_app import build_app, serve
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.prompt import PromptBuilder
from hierchat.runtime.served_model import ServedModel
from hierchat.store import Access, Store
from tests.testing import browser as driving
from tests.testing.tiny_chat import CONTEXT, END, SYSTEM, catalogue, served, settle, tokenizer

TOOLS_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    'Answer <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>\n{% endif %}'
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for c in m['tool_calls'] or [] %}<tool_call>\n{{ c['function'] | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Script:
    """An engine, elsewhere, that writes `text`, a token a step, and waits where it is told to."""

    context_length = CONTEXT
    exact: bool | None = None
    backend = "script"
    places = 1

    def __init__(self, text: str = "Hello there.") -> None:
        self.text = text
        self.holds_at: int | None = None
        """It waits before this token until `go` is set."""
        self.go = threading.Event()
        self.began, self.stopped = threading.Event(), threading.Event()
        self.asked: list[tuple[list[int], GenerationSettings]] = []

    def generate(
        self,
        prompt_ids: Sequence[int],
        settings: GenerationSettings,
        drafter: Proposer | None = None,
        stop: threading.Event | None = None,
        *,
        padded: bool = True,
        begun: int = 0,
        user: int | None = None,
    ) -> Generator[Step, None, None]:
        self.asked.append((list(prompt_ids), settings))
        self.began.set()
        yield Step(prompt_read=len(prompt_ids), prompt_tokens=len(prompt_ids), width=len(prompt_ids))
        words = tokenizer()(self.text, add_special_tokens=False)["input_ids"]
        words = [*words, END][: settings.max_new_tokens]
        written = ""
        for at, token in enumerate(words):
            while at == self.holds_at and not self.go.wait(0.01) and not (stop and stop.is_set()):
                pass
            written = tokenizer().decode(words[: at + 1], skip_special_tokens=True)
            finish = None
            if stop is not None and stop.is_set():
                finish = "stopped"
                self.stopped.set()
            elif token == END:
                finish = "end"
            elif any(mark in written for mark in settings.stop):
                finish = "stop"
            elif at + 1 == len(words):
                finish = "length"
            yield Step((token,), (TARGET,), width=1, forward_ms=1.0, finish=finish)  # type: ignore[arg-type]
            if finish:
                return


def with_template(template: str) -> Any:
    """The tiny tokenizer with another chat template."""
    words = tokenizer()
    words = type(words)(tokenizer_object=words.backend_tokenizer, **words.special_tokens_map)
    words.chat_template = template
    return words


def scripted(script: Script, template: str | None = None) -> Callable[[str, Report], ServedModel]:
    """Loads it, under any name."""
    words = tokenizer() if template is None else with_template(template)

    def load(name: str, report: Report) -> ServedModel:
        prompts = PromptBuilder(words, CONTEXT, SYSTEM)
        return ServedModel(name, f"script {name}", script, prompts, vanilla_ms=None)

    return load


def tiny(name: str, report: Report) -> ServedModel:
    """A random model that is computed here, with grammars."""
    return served(name)


def make_slot(load: Callable[[str, Report], ServedModel] = tiny, *names: str) -> ModelSlot:
    slot = ModelSlot(catalogue(*(names or ("tiny",))), load=load)
    slot.start(slot.names[0])
    return settle(slot)


@dataclass
class Served:
    """The program with its endpoint, on a port of this machine."""

    service: ChatService
    address: str

    @property
    def store(self) -> Store:
        return self.service.store

    @property
    def base(self) -> str:
        return self.address + "v1"


@contextmanager
def serving(
    folder: Path,
    slot: ModelSlot,
    access: Access = "open",
    account: tuple[str, str] | None = None,
) -> Iterator[Served]:
    with Store.open(folder / "chat.db") as store:
        store.keys.set_access(access)
        service = ChatService(store, slot)
        log_ins = driving.log_ins_of(store, account) if account else None
        app = build_app(service, "here", log_ins)
        address, _ = serve(app, log_ins, before=lambda page, local: Endpoint(page, service, local))
        try:
            yield Served(service, address)
        finally:
            app.close(verbose=False)
            if log_ins:
                log_ins.close()
            service.close()
