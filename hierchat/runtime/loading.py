"""From a catalogue entry to a model ready to answer: fetched, loaded, measured, with its databases and draft models."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from hierchat.config import Reasoning
from hierchat.drafting.proposer import installed_proposers
from hierchat.engine.local import LocalEngine
from hierchat.engine.remote.drafted import DraftedEngine, DrafterChannel
from hierchat.engine.remote.openai_client import OpenAIClient, RemoteModel
from hierchat.engine.remote.openai_engine import RemoteEngine, TextTokens, choices
from hierchat.models.catalogue import Backend, Catalogue, ModelEntry, OpenAI
from hierchat.models.device_memory import best_device
from hierchat.models.load.check import by_engine
from hierchat.models.progress import DeviceError, Progress, Report, UnsupportedError, silent
from hierchat.runtime.costs import Costs, machine_name, measure_costs
from hierchat.runtime.prompt import Chat, Prompt, PromptBuilder, PromptMessage, Tools, joined
from hierchat.runtime.served_model import ServedModel
from hierchat.runtime.template import ChatTemplate, TemplateStopped
from hierchat.runtime.thinking import ThinkingFormat

if TYPE_CHECKING:
    from hierchat.runtime.kernels import Compiling


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model is loaded, and what is to draft for it."""

    backend: Backend | None = None
    """None for the best that this machine has."""
    device: str | None = None
    """None for the best one."""
    implementation: str | None = None
    """The only one of engine/backends.py that is tried; by default the first that works, and the processor where a GPU
    has none."""
    places: int = 1
    """Replies that it is to write at once; fewer where memory is short."""
    stored: bool = False
    """Whether the corpora that the user added may draft."""
    corpus: Path | None = None
    """Texts that draft, too."""
    waits: bool = True
    """Whether texts that ship are tokenised first, where they are not yet; else they are left out."""
    catalogue: Catalogue | None = None
    """Where its draft models stand; None for none."""
    costs: Costs | None = None
    """Where an earlier run's are."""


def load_served_model(
    entry: ModelEntry,
    options: LoadOptions = LoadOptions(),
    report: Report = silent,
    measuring: Callable[[], None] = lambda: None,
) -> ServedModel:
    """Fetch and load a model, and measure its plain decoding. `measuring` is called when that begins.

    Raises a ModelError, or a CorpusError about the corpus of `options`.
    """
    # These take seconds to import: only when a model is really loaded
    from hierchat.engine.backends import remark, select_implementation
    from hierchat.engine.sampling.grammar import Grammars
    from hierchat.models.load.load_model import load
    from hierchat.runtime.drafters import warm_up
    from hierchat.runtime.kernels import DRAFTING, ENGINE, Compiling, is_drafting_compiled
    from hierchat.runtime.levels import load_levels
    from hierchat.texts.corpora import statistics

    device, implementation = options.device or best_device(), options.implementation
    places, waits = options.places, options.waits
    parts = (ENGINE, DRAFTING) if by_engine(entry, device, options.backend) else (DRAFTING,)
    with ExitStack() as stack:
        compiling = stack.enter_context(closing(Compiling(parts, gently=() if waits else (DRAFTING,))))
        loaded = load(entry, device, report, options.backend)
        require_template(entry.name, loaded.tokenizer)
        drafting = tuple(statistics(entry, loaded.tokenizer, options.corpus, options.stored, report, waits))
        compiling.wait(ENGINE, report)
        try:
            selected = select_implementation(loaded, report, places, implementation)
            note = " ".join(filter(None, (loaded.note, remark(selected))))
        except DeviceError as error:
            if implementation:
                raise
            note = f"{error} The processor computes it instead."
            report(Progress("loading", 0, None, note))
            del loaded  # what it holds of the GPU is of no use
            loaded = load(entry, "cpu", report)
            selected = select_implementation(loaded, report, places)
        runner = selected.runner
        if waits:
            compiling.wait(DRAFTING, report)
        measuring()
        engine = LocalEngine(
            runner.open(),
            loaded.end_ids,
            loaded.tokenizer.decode,
            min(places, runner.most_sequences),
            Grammars(loaded.tokenizer, loaded.end_ids, runner.vocabulary),
        )
        machine = machine_name(loaded)
        with compiling.paused():
            vanilla_ms = engine.measure_vanilla(entry.sampling, forwards=7)
            measure_costs(engine.latency, engine.sequence, loaded.model_key, machine, options.costs)
        levels = None
        if options.catalogue and runner.drafts:
            levels = load_levels(entry, loaded, engine, drafting, options.catalogue, report, options.costs)
        served = ServedModel(
            entry.name,
            loaded.model_key,
            engine,
            PromptBuilder(loaded.tokenizer, loaded.context_length, entry.system_prompt, entry.name),
            vanilla_ms,
            note,
            drafting,
            levels,
            machine,
            implementation=selected.implementation,
            activations=getattr(runner, "activations", ""),
            proposers=installed_proposers(),
        )
        if not runner.drafts:
            return served
        if DRAFTING in compiling:
            stack.pop_all()
            served = replace(served, drafting_ready=Event())
            Thread(target=_prepare_drafting, args=(served, compiling), name="drafting", daemon=True).start()
            return served
    if not is_drafting_compiled():
        report(Progress("compiling", 0, None, "what drafts, for this processor, once (up to a minute)"))
    warm_up(served)
    return served


def _prepare_drafting(served: ServedModel, compiling: Compiling) -> None:
    """Wait for what drafts, and let the model's next reply be drafted."""
    from hierchat.runtime.drafters import warm_up
    from hierchat.runtime.kernels import DRAFTING

    with closing(compiling):
        compiling.wait(DRAFTING, silent)
        warm_up(served)
        served.drafting_ready.set()


def require_template(name: str, tokenizer: Any) -> None:
    """Raises UnsupportedError where the model's chat template cannot be used."""
    try:
        ChatTemplate(tokenizer, name).require_usable()
    except TemplateStopped as error:
        raise UnsupportedError(str(error)) from error


# A model that a server elsewhere computes, ready to answer.


UNKNOWN_CONTEXT = 1_000_000
"""Where no server tells how much it holds: nothing is left out, and it refuses what is too long."""


class ThinkingElsewhere(ThinkingFormat):
    """Of a server's model, whose template is not here: what its kind of server can be asked."""

    def __init__(self, tokenizer: TextTokens, model: RemoteModel) -> None:
        super().__init__(tokenizer)
        self._offered = choices(model.owner, model.name)

    @property
    def choices(self) -> tuple[Reasoning, ...]:
        return self._offered


class TextPrompts(PromptBuilder):
    """Messages as a server takes them: their text, never tokens. How long they are is estimated."""

    knows_tokens = False

    def __init__(self, model: RemoteModel, context_length: int, system_prompt: str | None = None) -> None:
        tokens = TextTokens()
        super().__init__(tokens, context_length, system_prompt)
        self.thinking = ThinkingElsewhere(tokens, model)

    def build(
        self,
        messages: Sequence[PromptMessage],
        room: int,
        end_ids: Collection[int] = (),
        reasoning: Reasoning = "",
    ) -> Prompt:
        return super().build(_texts(messages), room)

    def whole(
        self,
        messages: Sequence[PromptMessage],
        end_ids: Collection[int] = (),
        tools: Tools = (),
        reasoning: Reasoning = "",
    ) -> Prompt:
        return super().whole(_texts(messages))

    def _encode(self, chat: Chat, tools: Tools, arguments: Mapping[str, Any]) -> list[int]:
        # Many templates insist on question and reply in turn, and a server's error names no way out.
        return super()._encode(joined(chat), tools, arguments)


def _texts(messages: Sequence[PromptMessage]) -> list[PromptMessage]:
    return [replace(message, tokens=()) for message in messages]


def load_remote(entry: ModelEntry) -> ServedModel:
    """Raises ServerError where the server, its model or the drafter in it cannot be had."""
    assert entry.engine
    said: OpenAI = entry.engine.openai
    server = OpenAIClient.of_catalogue(said)
    model = server.model(said.model)
    context = entry.context_length or model.context
    prompts = TextPrompts(model, context or UNKNOWN_CONTEXT, entry.system_prompt)
    engine, note = RemoteEngine(server, model, context), ""
    if said.drafter:
        channel = DrafterChannel(said.drafter, said.drafter_secret)
        if not channel.hello().get("learns", True):
            note = (
                "The drafter in vLLM cannot use its file, so earlier chats draft nothing. Its log says why."
            )
        engine = DraftedEngine(server, model, context, channel)
    return ServedModel(
        entry.name, f"remote:{server.host}/{model.name}", engine, prompts, vanilla_ms=None, note=note
    )
