"""Make a model of the catalogue ready to answer: fetch, load and measure it, with its databases and draft models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, get_args

from hierchat.config import GenerationSettings
from hierchat.drafting.proposer import Proposer, installed_proposers
from hierchat.engine.engine import Engine
from hierchat.engine.local import LocalEngine, measure
from hierchat.engine.remote.drafted import DraftedEngine, DrafterChannel
from hierchat.engine.remote.openai_client import OpenAIClient, RemoteModel
from hierchat.engine.remote.openai_engine import RemoteEngine, TextTokens, choices
from hierchat.freed_memory import give_back_freed_memory
from hierchat.language import later
from hierchat.models.catalogue import Backend, Catalogue, ModelEntry, read_catalogue
from hierchat.models.device_memory import best_device
from hierchat.models.fetch.convert import first_line
from hierchat.models.formats.block_model import BlockModel
from hierchat.models.load.add import chosen
from hierchat.models.load.check import by_engine
from hierchat.models.progress import (
    BrokenFileError,
    DeviceError,
    ModelError,
    Progress,
    Report,
    UnsupportedError,
    silent,
)
from hierchat.runtime.prompt import ChatMessages, PromptBuilder, PromptMessage, Tools, joined
from hierchat.runtime.served_model import ServedModel
from hierchat.runtime.template import ChatTemplate, TemplateRefused, TemplateStopped, ThinkingFormat
from hierchat.store.history import LearnedValues

if TYPE_CHECKING:
    from hierchat.engine.draft_head import DraftHead
    from hierchat.models.load.load_model import LoadedModel


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options of loading a model, and what is to draft for it; None for the best backend and device of this machine."""

    backend: Backend | None = None
    device: str | None = None
    implementation: str | None = None
    """The only implementation of engine/backends.py to try; by default the first that works."""
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
    learned: LearnedValues | None = None
    """Where the program keeps how often draft models agree with it."""


def load_served_model(
    entry: ModelEntry,
    options: LoadOptions = LoadOptions(),
    report: Report = silent,
    measuring: Callable[[], None] = lambda: None,
) -> ServedModel:
    """Fetch and load a model, and measure plain decoding (after `measuring`). Raises ModelError, CorpusError."""
    # These take seconds to import: only when a model is really loaded
    from hierchat.engine.backends import remark, select_implementation
    from hierchat.engine.sampling.grammar import Grammars
    from hierchat.models.load.load_model import load
    from hierchat.runtime.drafters import load_levels, warm_up
    from hierchat.runtime.kernels import DRAFTING, ENGINE, Compiling, is_drafting_compiled
    from hierchat.texts.corpora import statistics

    device, implementation = options.device or best_device(), options.implementation
    places, waits = options.places, options.waits
    parts = (ENGINE, DRAFTING) if by_engine(entry, device, options.backend) else (DRAFTING,)
    with ExitStack() as stack:
        compiling = stack.enter_context(closing(Compiling(parts)))
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
            note = later(f"{error} The processor computes it instead.")
            report(Progress("loading", 0, None, note))
            del loaded  # what it holds of the GPU is of no use
            loaded = load(entry, "cpu", report)
            selected = select_implementation(loaded, report, places)
        runner = selected.runner
        if waits:
            compiling.wait(DRAFTING, report)
        give_back_freed_memory()  # packing a model's file leaves hundreds of megabytes
        measuring()
        engine = LocalEngine(
            runner.open(),
            loaded.end_ids,
            loaded.tokenizer.decode,
            min(places, runner.most_sequences),
            Grammars(loaded.tokenizer, loaded.end_ids, runner.vocabulary),
        )
        engine.measure_vanilla(entry.sampling)  # raises BrokenLogits if weights are damaged
        measure(engine.latency, engine.sequence)
        levels = None
        if options.catalogue and runner.drafts:
            levels = load_levels(entry, loaded, engine, options.catalogue, report, options.learned)
        mtp, lack = _mtp_head(loaded, runner)
        served = ServedModel(
            entry.name,
            loaded.model_key,
            engine,
            PromptBuilder(loaded.tokenizer, loaded.context_length, entry.system_prompt, entry.name),
            " ".join(filter(None, (note, lack))),
            drafting,
            levels,
            implementation=selected.implementation,
            activations=getattr(runner, "activations", ""),
            proposers=installed_proposers(),
            mtp=mtp,
            parameters=_parameters(entry, loaded.model),
        )
        if not runner.drafts:
            return served
        if DRAFTING in compiling:
            stack.pop_all()
            served = replace(served, drafting_ready=Event())

            def prepare_drafting() -> None:
                with closing(compiling):
                    compiling.wait(DRAFTING, silent)
                    warm_up(served)
                    served.drafting_ready.set()

            Thread(target=prepare_drafting, name="drafting", daemon=True).start()
            return served
    if not is_drafting_compiled():
        report(Progress("compiling", 0, None, "what drafts, for this processor, once (up to a minute)"))
    warm_up(served)
    return served


def _parameters(entry: ModelEntry, model: Any) -> int | None:
    if entry.size or not isinstance(model, BlockModel):
        return entry.size.parameters if entry.size else None
    return sum(matrix.rows * matrix.columns for _, matrix in model.matrices())


def _mtp_head(loaded: LoadedModel, runner: Any) -> tuple[DraftHead | None, str]:
    """Make the draft head of the model's MTP layer, if the CPU engine or CUDA graphs can, else say why not."""
    if not runner.drafts:
        return None, ""
    try:
        return _made_head(loaded, runner, f"{loaded.model_key} mtp"), ""
    except (ModelError, MemoryError, RuntimeError, ValueError) as error:
        name, reason = loaded.name, first_line(error)
        return None, later(f"{name} brings a layer that drafts (MTP), which cannot be used: {reason}.")


def _made_head(loaded: LoadedModel, runner: Any, key: str) -> DraftHead | None:
    model, sizes = loaded.model, (runner.context_length, runner.most_sequences)
    if isinstance(model, BlockModel):
        if reason := model.config.get("mtp_lack"):
            raise BrokenFileError(reason)
        from hierchat.engine.draft_head import MtpLayerHead

        return MtpLayerHead(model, *sizes, key) if model.mtp else None
    from hierchat.engine.cuda.cuda_runner import CudaRunner
    from hierchat.engine.cuda.mtp_layer import mtp_layer
    from hierchat.engine.draft_head import MtpModuleHead

    layer = mtp_layer(runner.model, loaded.file) if isinstance(runner, CudaRunner) and loaded.file else None
    return None if layer is None else MtpModuleHead(layer, *sizes, key)


def require_template(name: str, tokenizer: Any) -> None:
    """Raise UnsupportedError where the model's chat template cannot even render one question."""
    try:
        ChatTemplate(tokenizer, name).ids([{"role": "user", "content": "?"}], add_generation_prompt=True)
    except TemplateRefused:
        pass  # it may want other messages
    except TemplateStopped as error:
        raise UnsupportedError(str(error)) from error


UNKNOWN_CONTEXT = 1_000_000
"""Where no server tells how much it holds: nothing is left out, and it refuses what is too long."""


class TextPrompts(PromptBuilder):
    """Build prompts for a server, which takes messages as text, never tokens. How long they are is estimated."""

    knows_tokens = False

    def __init__(self, model: RemoteModel, context_length: int, system_prompt: str | None = None) -> None:
        super().__init__(TextTokens(), context_length, system_prompt)
        self.thinking = ThinkingFormat(self.tokenizer, choices(model.owner, model.name))

    def _encode(self, chat: ChatMessages, tools: Tools, arguments: Mapping[str, Any]) -> list[int]:
        # Many templates insist on question and reply in turn, and a server's error names no way out.
        return super()._encode(joined(chat), tools, arguments)


def load_remote(entry: ModelEntry) -> ServedModel:
    """Make a model that a server computes ready to answer. Raises ServerError."""
    assert entry.engine
    said = entry.engine.openai
    server = OpenAIClient(said)
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
    return ServedModel(entry.name, f"remote:{server.host}/{model.name}", engine, prompts, note=note)


class StandaloneModel:
    """Generates in scripts, without a database, with all that drafts for the model."""

    def __init__(self, served: ServedModel) -> None:
        from hierchat.runtime.drafters import Memory

        self._served = served
        self._memory = Memory()
        self.engine: Engine = served.engine

    def prompt(self, messages: str | Sequence[Mapping[str, str]]) -> list[int]:
        """Return the tokens of a question, or of a conversation as OpenAI writes it. Raises MessageTooLong."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        said = [PromptMessage(message["role"], message["content"]) for message in messages]
        return self._served.prompts.whole(said, self._served.end_ids).ids

    def drafter(self, settings: GenerationSettings) -> Proposer:
        """Return the proposer for one reply under these settings; it drafts nothing where that does not pay."""
        from hierchat.runtime.drafters import reply_drafter

        return reply_drafter(self._served, self._memory, settings, Event())

    def learn(self, reply: Sequence[int]) -> None:
        """Add the tokens of a reply to what drafts later ones."""
        self._memory.history[0].add(reply)

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without control tokens."""
        return str(self._served.prompts.tokenizer.decode(list(tokens), skip_special_tokens=True))


def load(
    model: str | None = None, backend: Backend | None = None, report: Report = silent
) -> StandaloneModel:
    """Load a model: a name of the catalogue (None: its default), a folder, or a GGUF file. `backend`: None for the
    fastest. Raises ModelError."""
    if backend is not None and backend not in get_args(Backend):
        raise ValueError(f"{backend!r} is no backend. There are: {', '.join(get_args(Backend))}.")
    name = chosen(model, read_catalogue()) if model else None
    catalogue = read_catalogue()  # a file or folder may have joined it
    options = LoadOptions(backend, catalogue=catalogue)
    return StandaloneModel(load_served_model(catalogue.entry(name), options, report))
