"""Models that write what a test says, behind the real service, and the endpoint on a real port."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierchat.api.endpoint import Endpoint
from hierchat.chat.service import ChatService
from hierchat.models.progress import Report
from hierchat.page.page_app import Page, serve
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.prompt import PromptBuilder
from hierchat.runtime.served_model import ServedModel
from hierchat.store import Access, Store
from tests.testing import browser as driving
from tests.testing.scripted_engine import ScriptedEngine as Script
from tests.testing.stores import new_store
from tests.testing.tiny_chat import CONTEXT, SYSTEM, catalogue, served, settle, tokenizer

TOOLS_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    'Answer <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>\n{% endif %}'
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for c in m['tool_calls'] or [] %}<tool_call>\n{{ c['function'] | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


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
        return ServedModel(name, f"script {name}", script, prompts)

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
    with new_store(folder / "chat.db") as store:
        store.keys.set_access(access)
        service = ChatService(store, slot)
        log_ins = driving.log_ins_of(store, account) if account else None
        with Page(title="bare", analytics_enabled=False) as app:  # a whole one takes a second
            pass
        address, _ = serve(app, log_ins, before=lambda page, local: Endpoint(page, service, local))
        try:
            yield Served(service, address)
        finally:
            app.close(verbose=False)
            if log_ins:
                log_ins.close()
            service.close()
