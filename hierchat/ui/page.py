"""The page: its parts joined to their handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gradio as gr

from hierchat.ui import layout
from hierchat.ui.handlers import Handlers
from hierchat.ui.replies import Replies
from hierchat.ui.sessions import MAX_WAITING

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService

_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
# Replies share one place; Line lets one at a time through to the engine, and the rest can be stopped while waiting.
_ENGINE: dict[str, Any] = {**_QUIET, "concurrency_id": "engine", "concurrency_limit": MAX_WAITING + 1}


def build_app(service: ChatService, place: str) -> gr.Blocks:
    """The page over a chat service; `place` is where the data lies, for the eye."""
    with gr.Blocks(title="hierchat", analytics_enabled=False, fill_width=True, fill_height=True) as app:
        p = layout.build(service.host.names, place)
        handlers = Handlers(service, p)
        replies = Replies(service, p, handlers.views, handlers.who)

        middle = [p.empty, p.chat, p.versus, p.context, p.title, p.bus]
        chats = [p.list, p.footer]
        columns = [component for pair in p.columns.values() for component in pair]
        buttons = [p.send, p.stop]
        every = [*middle, *chats, *columns, *buttons, p.plan, p.live, p.box]
        every += [p.verdict, p.asked, p.replay, p.back]
        asking = [p.compare, p.query]

        polled = [p.host, p.proof, p.plan, p.timer, p.model]
        app.load(handlers.load, None, [*middle, *chats, *polled, *p.sampling], **_QUIET)
        app.unload(handlers.unload)
        p.timer.tick(handlers.poll, None, polled, **_QUIET)
        p.model.select(handlers.choose, p.model, [*polled, p.live, *p.sampling], **_QUIET)

        for trigger in (p.box.submit, p.send.click):
            trigger(replies.send, [p.box, *asking, *p.sampling], every, **_ENGINE)
        p.bus.hc_example(replies.example, [*asking, *p.sampling], every, **_ENGINE)
        p.bus.hc_edit(replies.edit, [*asking, *p.sampling], every, **_ENGINE)
        p.bus.hc_again(replies.again, [p.query, *p.sampling], every, **_ENGINE)
        p.replay.click(replies.replay, None, [*columns, *buttons, p.verdict, p.live], **_ENGINE)
        p.stop.click(handlers.stop, None, [p.live, *buttons], queue=False, **_QUIET)

        shown = [*middle, *chats, p.live]
        p.new.click(handlers.new, p.query, shown, **_QUIET)
        p.bus.hc_open(handlers.open, p.query, shown, trigger_mode="always_last", **_QUIET)
        p.bus.hc_rename(handlers.rename, p.query, shown, **_QUIET)
        p.bus.hc_delete(handlers.delete, p.query, shown, **_QUIET)
        p.bus.hc_branch(handlers.branch, None, [*middle, p.live], **_QUIET)
        p.bus.hc_sources(handlers.sources, None, [*middle, p.live], **_QUIET)
        p.query.change(handlers.search, p.query, chats, trigger_mode="always_last", **_QUIET)
        p.compare.change(handlers.compare, p.compare, [p.box, p.live, *middle], **_QUIET)
        p.back.click(handlers.back, None, [*middle, p.live], **_QUIET)
    # What Gradio itself may queue: replies over all pages, and the short handlers beside them.
    app.queue(max_size=64, default_concurrency_limit=8)
    return app
