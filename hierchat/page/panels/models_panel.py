"""Models: what there is and what of it is here, whether it fits, how fast it is; fetching, loading, removing."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import gradio as gr

from hierchat.language import _, error_words, later, plural
from hierchat.models.cache import gigabytes
from hierchat.models.fetch.hub import endpoint
from hierchat.models.formats.gguf_head import without_number
from hierchat.models.progress import ModelError
from hierchat.models.runnable import STEPS
from hierchat.page import chat_settings, status
from hierchat.page.buttons import button
from hierchat.page.chat_settings import InvalidSettings
from hierchat.page.components import MORE
from hierchat.page.event_data import Foreign, PageEvent
from hierchat.page.guard import Remark
from hierchat.page.panels import models_view
from hierchat.page.panels.models_view import count_line, download_line, facts_line, fit_line, speed_line
from hierchat.page.panels.panel import Panel, still
from hierchat.page.status import error, waiting
from hierchat.page.views import Update

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService
    from hierchat.models.fetch.hub import HubFile, HubModel
    from hierchat.page.guard import PageEvents
    from hierchat.page.page_sessions import Session
    from hierchat.runtime.downloads import Look, Search
    from hierchat.runtime.model_manager import Failures, ModelManager, ModelRow

_OTHERS = later(
    "Only the owner of this hierchat downloads, adds, ejects and removes models. You can load those that are here."
)
_SHARED = later(
    "This page is shared by a public link. Models are downloaded, added, ejected and removed only while it is not: "
    "start hierchat without --share."
)
_FORM, _HUB = ":form", ":hub"
"""Where answers stand that belong to no model of the list: below the form that adds one, above what the hub has."""
_FOR_ALL = ("hc_model_load", "hc_model_cancel", "hc_model_heard")
"""Buttons that are not the owner's alone."""


class ModelsPanel(Panel):
    """Show all models, and load the chosen one. `shared`: whether a public link leads here: then nothing else goes."""

    name = "models"
    title = later("Models")

    def __init__(self, service: ChatService, shared: Callable[[], bool]) -> None:
        super().__init__(service)
        self._shared = shared
        self._seen: Failures = (None, ())
        """What had gone wrong when the view was drawn last."""

    @property
    def _manager(self) -> ModelManager:
        return self._service.models

    def build(self) -> None:
        self._said = gr.HTML("", elem_id="hc-models-said")
        gr.HTML(models_view.narrowing(), elem_id="hc-models-narrowing")
        self._list = still("hc-models-list")
        gr.HTML(searching(endpoint()), elem_id="hc-hub-search")
        self._found = still("hc-hub-found")
        gr.HTML(models_view.adding(), elem_id="hc-models-add")
        self._added = gr.HTML("", elem_id="hc-models-added")
        gr.HTML(f'<p class="hc-quiet">{_(models_view.HOW)}</p>', elem_id="hc-models-how")
        self.outputs = [self._said, self._list, self._found, self._added]

    def wire(self, page: PageEvents) -> None:
        self._parts, self._views = page.parts, page.views
        on, p = page.on, page.parts
        on(p.timer.tick, self.poll)
        on(p.model.select, self.choose, [p.model, *p.settings.fields])
        # The model that alone can show where a reply's words came from.
        on(
            "hc_sources_load",
            lambda event, *values: self.choose(event, event.text, *values),
            p.settings.fields,
        )
        on("hc_models_sort", self.sort, outputs=self.outputs)
        for name, act in self._acts().items():
            # Each press counts, one after the other: an answer of several steps is still under way when it is seen.
            once: dict[str, Any] = {"trigger_mode": "multiple", "concurrency_limit": 1}
            on(on(name, act, outputs=self.outputs, **once).then, self.poll)

    def _acts(self) -> dict[str, Callable[..., Any]]:
        """Return the handlers by the action that a button carries; each gets what it carries, and does it."""
        acts: dict[str, Callable[[str], str | None]] = {
            "hc_model_fetch": lambda name: self._manager.download(name),
            "hc_model_stop": lambda name: self._manager.downloads.stop(name),
            "hc_model_load": lambda name: self._manager.load(name),
            "hc_model_take": lambda name: self._manager.take(name),
            "hc_model_eject": lambda name: self._manager.eject(),
            "hc_model_remove": lambda name: None,
            "hc_model_removed": self._remove,
            "hc_model_keep": lambda name: None,
            "hc_model_cancel": lambda name: self._manager.cancel(),
            "hc_model_heard": lambda name: self._service.dismiss_model_message(),
            "hc_model_add": lambda text: models_view.added(*self._manager.add(text)),
            "hc_hub_search": lambda words: self._manager.hub.search(words),
            "hc_hub_look": self._look,
            "hc_hub_less": lambda said: self._manager.hub.leave_look(),
            "hc_hub_leave": lambda said: self._manager.hub.leave(),
            "hc_hub_take": lambda said: self._manager.add_and_load(),
            "hc_model_draft": partial(self._let_draft, wanted=True),
            "hc_model_undraft": partial(self._let_draft, wanted=False),
        }
        answers: dict[str, Callable[..., Any]] = {
            name: self._answering(name, act) for name, act in acts.items()
        }
        add = answers["hc_model_add"]

        def patiently(event: PageEvent) -> Iterator[dict[Any, Any]]:
            """Answer at once that the hub is asked, which takes seconds, and then with what came of it."""
            yield {self._added: status.waiting(_("Checking it…"))}
            yield add(event)

        return answers | {"hc_model_add": patiently}

    def show(self, session: Session) -> dict[Any, Any]:
        """Draw the list, and measure memory meanwhile. What went wrong before, and was seen, is past."""
        self._manager.measure()
        self._manager.forget_failures(self._seen)
        return self._drawn(session)

    def sort(self, event: PageEvent) -> Update:
        """Sort the table by a column, or the other way round."""
        session, by = event.session, event.text
        session.models_by = f"-{by}" if session.models_by == by else by
        return self._drawn(session)

    def choose(self, event: PageEvent, name: str, *values: Any) -> Update:
        """Load another model that is here, or show all. Sampling in which nothing was set follows the model."""
        now = self._service.model_status
        if name == MORE:
            present = gr.update(value=now.name or None)
            return self._views.open_panel(event.session, self.name) | {self._parts.model: present}
        sampled = self._following(name, values)
        # Gradio 6.31 reports one choice in a dropdown twice.
        if now.name != name or now.phase in ("none", "failed"):
            self._manager.load(name)
        return sampled | self._views.model() | {self._parts.timer: gr.Timer(active=True)}

    def poll(self, event: PageEvent) -> Update:
        """Draw how far the model is, the list while it is open, and marked replies once their model is there."""
        update, session = self._views.model(), event.session
        # Looked at after the model, which may have ended the timer: so the list never misses the end.
        if session.panel == self.name:
            drawn = self._drawn(session)
            update |= {part: drawn[part] for part in (self._list, self._found)}
        now = self._service.model_status
        if not session.marked or session.panel or now.phase != "ready" or now.name == session.sources_by:
            return update
        if session.conversation is None or self._views.now(session) is not None:
            return update
        return update | {self._parts.thread: self._views.thread(session)}

    def _following(self, name: str, values: Sequence[Any]) -> Update:
        """The sampling of the model of that name, unless that of the one before was changed."""
        controls = self._parts.settings.sampling
        before, after = (self._service.chats.model_settings(model).sampling for model in ("", name))
        with suppress(InvalidSettings):
            if chat_settings.read(values).sampling == before:
                return dict(zip(controls, chat_settings.values_of(after), strict=True))
        return {}

    def _answering(self, name: str, act: Callable[[str], str | None]) -> Callable[..., dict[Any, Any]]:
        def answer(event: PageEvent) -> dict[Any, Any]:
            session, text = event.session, event.text
            session.removing = ""
            place = _HUB if name.startswith("hc_hub_") else text.partition("|")[0]
            place = _FORM if name == "hc_model_add" else place
            if name not in _FOR_ALL and (why := self._refusal(session.user)):
                if session.panel != self.name:  # pressed above or below a chat
                    raise Remark(why)
                session.model_said = ("", status.error(why))
                return self._drawn(session)
            try:
                session.model_said = (place, act(text) or "")
                session.removing = text if name == "hc_model_remove" else ""
            except ModelError as error:
                session.model_said = (place, status.error(str(error)))
            return self._drawn(session) if session.panel == self.name else {}  # else pressed above a chat

        return answer

    def _refusal(self, user_id: int) -> str:
        """Why this user changes nothing here; empty where they may."""
        if self._shared():
            return _(_SHARED)
        return "" if self._service.users.is_owner(user_id) else _(_OTHERS)

    def _drawn(self, session: Session) -> dict[Any, Any]:
        manager = self._manager
        try:
            unmeasured, rows = manager.unmeasured, manager.rows(session.user)
        except ModelError as error:  # models.yaml was edited by hand
            return dict.fromkeys(self.outputs, "") | {self._said: status.error(str(error))}
        removing, (place, said) = session.removing, session.model_said
        self._seen = manager.failures
        may_change = not self._refusal(session.user)
        drawn = models_view.models(
            rows,
            models_view.Present(
                manager.best(rows), self._service.model_status, may_change, unmeasured, said=(place, said),
                removing=removing, frees=manager.frees(removing) if removing else 0,
            ),
            session.models_by,
        )  # fmt: skip
        elsewhere = place in (_FORM, _HUB) or any(row.name == place for row in rows)
        return {
            self._said: "" if elsewhere else said,
            self._list: drawn,
            self._found: self._searched(rows, said if place == _HUB else "") if may_change else "",
            self._added: said if place == _FORM else "",
        }

    def _searched(self, rows: Sequence[ModelRow], said: str) -> str:
        """The owner's search, as far as it is. `said`: HTML that answers its last button."""
        manager = self._manager
        look = manager.hub.now.look if manager.hub.now else None
        name = manager.name_of(look.described) if look and look.described else ""
        return said + found(manager.hub.now, next((row for row in rows if row.name == name), None))

    def _remove(self, name: str) -> str:
        self._manager.remove(name)
        return status.notice(_("{name} is removed from this machine.").format(name=name))

    def _look(self, said: str) -> None:
        repo, named, file = said.partition("|")
        self._manager.hub.look(repo, file if named else None)

    def _let_draft(self, names: str, *, wanted: bool) -> str:
        name, between, draft = names.partition("|")
        if not between:
            raise Foreign
        self._manager.let_draft(name, draft, wanted)
        said = _("{draft} no longer drafts for {name} from the next time that {name} is loaded.")
        if wanted:
            said = _("{draft} drafts for {name} from the next time that {name} is loaded.")
        return status.notice(said.format(draft=draft, name=name))


_PRIVATE = later(
    "The words of the search go to {hub}, and so does which of the models found you look at. Nothing is sent before "
    "you press a button, and nothing of your chats ever."
)
_PACKED = later(
    "Some of its weights are packed in a way that may not be read here. If there is a GGUF file of it, that is safer."
)
_KIND = re.compile(r"[-_.]((?:UD-)?(?:I?Q\d|TQ\d|BF16|F16|F32|MXFP4)[\w]*)\.gguf$", re.IGNORECASE)


def searching(hub: str) -> str:
    """The form; its script is models.js. `hub`: the address that is asked."""
    host = f"<code>{html.escape(re.sub(r'^https?://', '', hub))}</code>"
    return (
        f'<h2 id="hc-hub-searching">{_("Search the hub")}</h2>'
        '<div class="hc-add" role="search" aria-labelledby="hc-hub-searching">'
        f'<input type="text" id="hc-hub-words" dir="auto" aria-label="{_("Words to search for")}" '
        'placeholder="Qwen3 GGUF" maxlength="200" autocomplete="off" spellcheck="false">'
        f"{button('hc_hub_search', _('Search'), css='hc-strong')}</div>"
        f'<p class="hc-quiet">{_(_PRIVATE).format(hub=host)}</p>'
    )


def found(search: Search | None, row: ModelRow | None) -> str:
    """Draw what was found. `row`: the model of the list that is the one that is looked at, if it is there."""
    if search is None:
        return ""
    words = html.escape(search.words)
    if search.phase == "asking":
        stop = button("hc_hub_leave", _("Stop"), css="hc-bordered")
        return f'<div class="hc-hub-said">{waiting(_("Asking the hub…"))}{stop}</div>'
    if search.phase == "failed":
        return error(search.message)
    leave = button("hc_hub_leave", _("Close the search"), css="hc-bordered")
    if not search.found:
        said = _("The hub has no model for “{words}”. Try fewer words.").format(words=words)
        return f'<div class="hc-hub-said"><p role="status">{said}</p>{leave}</div>'
    said = plural(
        "One model for “{words}”",
        "{n} models for “{words}”, most downloaded first",
        len(search.found),
        words=words,
    )
    look = search.look
    entries = "".join(
        _found_entry(model, look if look and look.repo == model.repo else None, row) for model in search.found
    )
    return (
        f'<div class="hc-hub-said"><p role="status">{said}</p>{leave}</div>'
        f'<ul class="hc-found">{entries}</ul>'
    )


def _found_entry(model: HubModel, look: Look | None, row: ModelRow | None) -> str:
    marks = [_("licence to accept first")] if model.gated else []
    marks += [_("not for chat")] if model.not_for_chat else []
    badges = "".join(f'<span class="hc-badge">{mark}</span>' for mark in marks)
    why = error_words(model.not_for_chat)
    said = f'<p class="hc-fit">{html.escape(why[0].upper() + why[1:])}.</p>' if why else ""
    closer = "" if why else _closer(model, look)
    return (
        f'<li data-found="{html.escape(model.repo)}"><h3>{html.escape(model.repo)}</h3>{badges}'
        f'<p class="hc-model-facts">{_facts(model)}</p>{said}{closer}{_look(look, row) if look else ""}</li>'
    )


def _closer(model: HubModel, look: Look | None) -> str:
    label, act = (_("Hide details"), "hc_hub_less") if look else (_("Details"), "hc_hub_look")
    name = f"{label}: {model.repo}"
    pressed = button(
        act, label, text=model.repo, css="hc-bordered", aria_label=name, aria_expanded=str(bool(look)).lower()
    )
    return f'<div class="hc-model-acts">{pressed}</div>'


def _facts(model: HubModel) -> str:
    files = len(model.gguf)
    facts = [
        count_line(model.parameters if not model.packed else None),
        gigabytes(model.size) if model.size else "",
        plural("{n} GGUF file", "{n} GGUF files", files) if files else "",
        model.licence or _("licence unknown"),
        plural("{n:,} download", "{n:,} downloads", model.downloads) if model.downloads is not None else "",
    ]
    return facts_line(facts)


def _look(look: Look, row: ModelRow | None) -> str:
    chips = _chips(look)
    if look.phase == "asking":
        return f'<div class="hc-hub-look">{chips}{waiting(_("Asking the hub what it is…"))}</div>'
    if look.phase == "failed" or look.described is None or look.judged is None:
        return f'<div class="hc-hub-look">{chips}{error(look.message)}</div>'
    fit, speed = look.judged.fit, look.judged.speed
    step = _(STEPS[look.described.step])
    packed = (
        f'<p class="hc-fit">{_(_PACKED)}</p>' if look.model and look.model.packed and not look.file else ""
    )
    size = next((one.size for one in look.choices if one.name == look.file), None)
    facts = [look.choices[0].name or _("safetensors")] if _alone(look) else []
    facts += [_("{size} to download").format(size=gigabytes(size))] if size else []
    drawn = [facts_line(facts)] if facts else []
    drawn += [speed_line(speed)] if speed and fit.verdict != "no" else []
    told = f'<p class="hc-model-facts">{" · ".join(drawn)}</p>'
    return f'<div class="hc-hub-look">{chips}{told}{fit_line(fit, step)}{packed}{_take(look, row)}</div>'


def _take(look: Look, row: ModelRow | None) -> str:
    if row:
        said = _("It is in the list above as {name}.").format(name=html.escape(row.name))
        if row.download and row.download.under_way:
            said += _(" It is being downloaded, then loaded.")
        return f'<p class="hc-fit" role="status">{said}</p>{download_line(row.download)}'
    if look.judged is None or look.judged.fit.verdict == "no":
        return ""
    name = _("Add and load {repo}").format(repo=look.repo)
    take = button("hc_hub_take", _("Add and load"), text=look.repo, css="hc-strong", aria_label=name)
    return f'<div class="hc-model-acts">{take}</div>'


def _alone(look: Look) -> bool:
    """Return whether there is nothing to choose among."""
    return [one.name for one in look.choices] == [look.file]


def _chips(look: Look) -> str:
    """The files to choose among, the chosen one marked."""
    files = look.choices
    if not files or _alone(look):
        return ""
    names = [_short(file.name) for file in files]
    chips = "".join(
        button(
            "hc_hub_look",
            _sized(short if names.count(short) == 1 else file.name, file),
            text=f"{look.repo}|{file.name}",
            css="hc-bordered",
            aria_label=_sized(file.name or _("safetensors"), file),
            aria_pressed=str(file.name == look.file).lower(),
        )
        for short, file in zip(names, files, strict=True)
    )
    return f'<div class="hc-hub-files" role="group" aria-label="{_("Files of this model")}">{chips}</div>'


def _sized(name: str, file: HubFile) -> str:
    return f"{name} · {gigabytes(file.size)}" if file.size else name


def _short(name: str) -> str:
    """Return what tells a file from the others of its repository."""
    if not name:
        return _("safetensors")
    found = _KIND.search(without_number(name))
    return found[1] if found else name
