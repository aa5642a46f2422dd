"""A search of the hub as HTML. Pure functions. All that the hub tells is text that anybody may have written."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from hierchat.language import _, later, plural
from hierchat.models.cache import gigabytes
from hierchat.models.formats.gguf_head import without_number
from hierchat.models.runnable import STEPS
from hierchat.page.buttons import button
from hierchat.page.panels.models_view import count_line, download_line, facts_line, fit_line, speed_line
from hierchat.page.status import error, waiting

if TYPE_CHECKING:
    from hierchat.models.fetch.hub import HubFile, HubModel
    from hierchat.runtime.downloads import Look, Search
    from hierchat.runtime.model_manager import ModelRow

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
        f'<input type="text" id="hc-hub-words" aria-label="{_("Words to search for")}" '
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
        _entry(model, look if look and look.repo == model.repo else None, row) for model in search.found
    )
    return (
        f'<div class="hc-hub-said"><p role="status">{said}</p>{leave}</div>'
        f'<ul class="hc-models">{entries}</ul>'
    )


def _entry(model: HubModel, look: Look | None, row: ModelRow | None) -> str:
    marks = [_("licence to accept first")] if model.gated else []
    marks += [_("not for chat")] if model.not_for_chat else []
    badges = "".join(f'<span class="hc-badge">{mark}</span>' for mark in marks)
    why = model.not_for_chat
    said = f'<p class="hc-fit">{html.escape(why[0].upper() + why[1:])}.</p>' if why else ""
    closer = "" if why else _closer(model, look)
    return (
        f'<li class="hc-model" data-found="{html.escape(model.repo)}"><h3>{html.escape(model.repo)}</h3>{badges}'
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
