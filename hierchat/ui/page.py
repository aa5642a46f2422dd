"""The page: its parts joined to their handlers."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import gradio as gr

from hierchat.engine.scheduler import MOST_WAITING
from hierchat.language import marked
from hierchat.runtime.host import PLACES
from hierchat.ui import account, layout
from hierchat.ui.attaching import AttachingHandlers
from hierchat.ui.comparisons.setup import SetupHandlers
from hierchat.ui.guard import Guard
from hierchat.ui.handlers import Handlers
from hierchat.ui.naming import NamingHandlers
from hierchat.ui.organising import OrganisingHandlers
from hierchat.ui.panels.comparisons import ComparisonsPanel
from hierchat.ui.panels.insights import InsightsPanel
from hierchat.ui.panels.models import ModelsPanel
from hierchat.ui.panels.panel import QUIET, Panel
from hierchat.ui.panels.settings import SettingsPanel
from hierchat.ui.presets import PresetHandlers
from hierchat.ui.replies import ReplyHandlers
from hierchat.ui.speaking import Page
from hierchat.ui.transfer_panel import TransferHandlers
from hierchat.ui.unsent import Kept

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService
    from hierchat.ui.doors.sessions import LogIns

# Replies wait below the page, for the engine; so all of them may run here. Those that another page
# asked for are followed apart, so that they keep none from being asked.
_ENGINE: dict[str, Any] = {**QUIET, "concurrency_id": "engine", "concurrency_limit": MOST_WAITING + PLACES}
_FOLLOW: dict[str, Any] = {**QUIET, "concurrency_id": "follow", "concurrency_limit": MOST_WAITING + PLACES}

# One step after the other, and the last one counts. Gradio 6.31's "always_last" would run the first click again.
_STEP: dict[str, Any] = {
    **QUIET,
    "trigger_mode": "multiple",
    "concurrency_id": "step",
    "concurrency_limit": 1,
}

# After every event Gradio would sum up the last 10,000, for a view that is switched off here.
_NO_SUMS = {"GRADIO_ANALYTICS_MAX_EVENTS": "1", "GRADIO_ANALYTICS_CACHE_FREQUENCY": str(10**9)}


def build_app(service: ChatService, place: str, log_ins: LogIns | None = None) -> gr.Blocks:
    """The page over a chat service; `place` is where the data lies, for the eye; `log_ins`: where there is a login."""
    os.environ |= _NO_SUMS
    page = Page(title="hierchat", analytics_enabled=False, fill_width=True, fill_height=True)
    with page as app, marked():
        models = ModelsPanel(service, shared=lambda: bool(app.share_url))
        settings_panel = SettingsPanel(service, log_ins)
        comparisons = ComparisonsPanel(service.store)
        panels: list[Panel] = [models, InsightsPanel(service), comparisons, settings_panel]
        p = layout.build(service.models.names, place, log_ins is not None, panels)
        handlers = Handlers(service, app, p, panels)
        page.fresh = {p.model._id: handlers.picker}
        unsent = Kept()
        replies = ReplyHandlers(service, p, handlers.views, handlers.who, unsent)
        attaching = AttachingHandlers(service, p, handlers.views, handlers.who, unsent)
        organising = OrganisingHandlers(service, p, handlers.views, handlers.who)
        presets = PresetHandlers(service, p, handlers.views, handlers.who)

        middle = [
            p.empty,
            p.tiny,
            p.chat,
            p.thread,
            p.growing,
            p.versus,
            p.context,
            p.title,
            p.bus,
            p.links,
            p.tray,
        ]
        middle += [p.incognito, *p.panels.values(), *(output for panel in panels for output in panel.outputs)]
        chats = [p.list, p.undo, p.footer]
        columns = [component for pair in p.columns.values() for component in pair]
        buttons = [p.send, p.stop]
        every = [*middle, *chats, *columns, *buttons, p.live, p.box]
        every += p.settings.components
        every += [p.verdict, p.asked, p.result, p.back, p.cue]
        asking, settled = [p.compare, p.query], [p.box, p.live, p.tray, *buttons]
        settings = [p.bus, *p.settings.fields]

        polled = [p.host, p.timer, p.model, p.pair, p.settings.thinks]
        loaded = app.load(handlers.load, None, [*every, *polled, p.pulse], **QUIET)
        app.unload(handlers.unload)
        p.pulse.tick(handlers.going_on.pulse, None, p.cue, queue=False, **QUIET)
        p.bus.hc_watch(handlers.going_on.watch, None, every, trigger_mode="always_last", **QUIET)
        # The panel looks after the poll that may have ended the timer: so it never misses the end.
        polling: dict[str, Any] = {"outputs": [*polled, p.live, p.tiny], **QUIET}
        p.timer.tick(handlers.poll, None, **polling).then(
            models.tick, None, [*models.outputs, p.live], **QUIET
        ).then(handlers.loaded, None, [p.thread, p.live], **QUIET)
        p.model.select(handlers.choose, [p.model, p.query, *p.settings.fields], [*every, *polled], **QUIET)
        p.bus.hc_sources_load(
            handlers.load_for_sources, [p.query, *p.settings.fields], [*every, *polled], **QUIET
        )
        for name, does in models.acts.items():
            # Each press counts, one after the other: an answer of several steps is still under way when it is seen.
            pressed: dict[str, Any] = {"trigger_mode": "multiple", "concurrency_limit": 1, **QUIET}
            done = getattr(p.bus, name)(does, None, [*models.outputs, p.live], **pressed)
            done.then(handlers.poll, None, **polling).then(
                models.tick, None, [*models.outputs, p.live], **QUIET
            )

        # "multiple": a message may wait for the reply in another chat.
        for trigger in (p.box.submit, p.send.click):
            sent = trigger(
                replies.send, [p.box, *asking, *settings], every, trigger_mode="multiple", **_ENGINE
            )
            sent.then(handlers.settle, p.box, settled, trigger_mode="always_last", **QUIET)
        for ask, asks in ((p.bus.hc_example, replies.example), (p.bus.hc_edit, replies.edit)):
            sent = ask(asks, [*asking, *settings], every, trigger_mode="multiple", **_ENGINE)
            sent.then(handlers.settle, p.box, settled, trigger_mode="always_last", **QUIET)
        for go_on, goes_on in ((p.bus.hc_again, replies.again), (p.bus.hc_continue, replies.resume)):
            sent = go_on(goes_on, [p.query, *settings], every, trigger_mode="multiple", **_ENGINE)
            sent.then(handlers.settle, p.box, settled, trigger_mode="always_last", **QUIET)
        followed = p.bus.hc_follow(replies.follow, None, every, trigger_mode="multiple", **_FOLLOW)
        followed.then(handlers.settle, p.box, settled, trigger_mode="always_last", **QUIET)
        p.stop.click(handlers.stop, None, every, queue=False, **QUIET)
        p.bus.hc_dismiss(handlers.dismiss, None, p.live, **QUIET)

        steps = [
            p.new.click(handlers.new, p.query, every, **_STEP),
            p.bus.hc_open(handlers.open, p.query, every, **_STEP),
            p.bus.hc_go(handlers.go, p.query, every, **_STEP),
            p.bus.hc_panel(handlers.panel, p.query, [*every, p.timer], **_STEP),
        ]
        for answered in (loaded, *steps):
            answered.then(None, js="() => window.hcArrived?.()", trigger_mode="multiple", **QUIET)
        p.bus.hc_incognito(handlers.incognito, None, every, **QUIET)
        p.bus.hc_incognito_keep(handlers.keep_incognito, p.query, every, **QUIET)
        p.bus.hc_more(handlers.more, p.query, every, **QUIET)
        for act, does in (
            (p.bus.hc_rename, organising.rename), (p.bus.hc_pin, organising.pin),
            (p.bus.hc_archive, organising.archive), (p.bus.hc_shelf, organising.shelf),
            (p.bus.hc_delete, organising.delete), (p.bus.hc_restore, organising.restore),
            (p.bus.hc_fork, organising.fork),
        ):  # fmt: skip
            act(does, p.query, every, **QUIET)
        p.bus.hc_forget(handlers.forget, p.query, every, **QUIET)
        p.bus.hc_earlier(handlers.earlier, None, every, **QUIET)
        p.bus.hc_latest(handlers.latest, None, every, **QUIET)
        p.bus.hc_branch(handlers.branch, None, every, **QUIET)
        p.bus.hc_sources(handlers.sources, None, every, **QUIET)
        above = [p.tray, p.live]
        p.bus.hc_attached(attaching.attach, None, above, trigger_mode="multiple", **QUIET)
        p.bus.hc_kept(attaching.again, None, above, **QUIET)
        p.bus.hc_detach(attaching.detach, None, above, trigger_mode="multiple", **QUIET)
        p.bus.hc_inline(attaching.inline, p.box, [*above, p.box], **QUIET)
        p.bus.hc_next_edit(attaching.edit_next, p.box, [*above, p.box], **QUIET)
        p.bus.hc_next_cancel(attaching.cancel_next, None, above, **QUIET)
        p.bus.hc_count(
            attaching.count, [p.box, *settings], [p.count, *above], trigger_mode="always_last", **QUIET
        )
        p.bus.hc_attachment(attaching.show, None, every, **QUIET)
        p.query.change(handlers.search, p.query, every, trigger_mode="always_last", **QUIET)
        p.compare.change(handlers.compare, p.compare, every, **QUIET)
        p.back.click(handlers.back, None, every, **QUIET)
        setup = SetupHandlers(handlers.who, p.setup)
        # Each change, one after the other: the last one counts.
        p.bus.hc_setup(
            setup.choose, None, [p.setup, p.live], trigger_mode="multiple", concurrency_limit=1, **QUIET
        )
        comparisons.listen(p.bus, handlers.who, p.live)
        settings_panel.texts.wire(p.bus, handlers.who, p.live)
        settings_panel.learning.wire(p.bus, handlers.who, p.live)

        kept = [*p.settings.components, p.live]
        p.bus.hc_keep(presets.keep, settings, kept, trigger_mode="always_last", **QUIET)
        p.bus.hc_settings_back(presets.bring_back, None, kept, **QUIET)
        p.settings.preset.input(presets.choose, settings, kept, **QUIET)
        for asked, answers in (
            (p.bus.hc_preset_new, presets.create), (p.bus.hc_preset_save, presets.save),
            (p.bus.hc_preset_rename, presets.rename), (p.bus.hc_preset_delete, presets.delete),
            (p.bus.hc_preset_default, presets.default),
        ):  # fmt: skip
            asked(answers, settings, kept, **QUIET)
        for panel in panels:
            panel.wire(handlers.who, p.live)
        settings_panel.connected.wire(p.bus, handlers.who, p.live)
        if log_ins is not None:
            account.wire(app, p.account, settings_panel.password)
            log_ins.on_end.append(partial(account.forget_guest, service, unsent))
        NamingHandlers(service, p, handlers.views, handlers.who).wire(every, QUIET)
        TransferHandlers(service, p, settings_panel.transfer, handlers.views, handlers.who).wire(every, QUIET)
        Guard(p, handlers.views, handlers.who).cover(app)
    # What Gradio itself may queue: replies over all pages, and the short handlers beside them.
    app.queue(max_size=64, default_concurrency_limit=8)
    return app
