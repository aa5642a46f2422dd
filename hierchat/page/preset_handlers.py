"""Handlers of the panel of chat settings: what is changed is kept, presets are chosen, saved, renamed, deleted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gradio as gr

from hierchat.page import chat_settings
from hierchat.page.chat_settings import InvalidSettings
from hierchat.page.components import Components
from hierchat.page.event_data import whole
from hierchat.page.guard import SETTINGS
from hierchat.page.panels.panel import SessionOf
from hierchat.page.views import Update, Views
from hierchat.store import ChatSettings

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService


class PresetHandlers:
    """The handlers. The first value of each is the chat whose settings the panel shows, then `Panel.fields`.

    That chat may not be on the screen any more when a change arrives.
    """

    def __init__(self, service: ChatService, parts: Components, views: Views, session_of: SessionOf) -> None:
        self._service = service
        self._parts = parts
        self._views = views
        self._session_of = session_of

    def keep(self, shown: str, request: gr.Request, *values: Any) -> Update:
        """Keep what was changed in the panel."""
        session, user = self._session_of(request)
        try:
            settings = chat_settings.read(list(values))
        except InvalidSettings:  # still being typed; who sends it is told
            return self._nothing()
        return self._let(user, shown, settings, request) | self._views.settled(session, user, SETTINGS)

    def bring_back(self, event: gr.EventData, request: gr.Request) -> Update:
        """Bring back what was set for a chat that is not stored yet, before the page was loaded again."""
        session, user = self._session_of(request)
        settings = chat_settings.noted(str(event._data["text"]))
        if settings is None or session.conversation is not None:
            return self._nothing()
        return chat_settings.drawn(
            self._parts.settings, self._service.presets.all(user), settings, stored=False
        )

    def choose(self, shown: str, request: gr.Request, *values: Any) -> Update:
        """Choose a preset for this chat, or none: then the model's own values."""
        _, user = self._session_of(request)
        wanted = whole(values[0] or 0)
        settings = self._service.chats.model_settings()
        if wanted:
            settings = self._service.presets.get(user, wanted).settings
        return self._done(user, shown, settings, request, fields=True)

    def create(self, shown: str, event: gr.EventData, request: gr.Request, *values: Any) -> Update:
        """Save what the panel shows as a new preset, which the chat has from now on."""
        _, user = self._session_of(request)
        settings = chat_settings.read(list(values))
        preset = self._service.presets.create(user, str(event._data["text"]), settings)
        return self._done(user, shown, replace(settings, preset_id=preset), request)

    def save(self, shown: str, request: gr.Request, *values: Any) -> Update:
        """Save what the panel shows into the preset that the chat has."""
        _, user = self._session_of(request)
        settings = chat_settings.read(list(values))
        if settings.preset_id is not None:
            self._service.presets.change(user, settings.preset_id, settings)
        return self._done(user, shown, settings, request)

    def rename(self, shown: str, event: gr.EventData, request: gr.Request, *values: Any) -> Update:
        """Give the preset another name."""
        _, user = self._session_of(request)
        settings = chat_settings.read(list(values))
        if settings.preset_id is not None:
            self._service.presets.rename(user, settings.preset_id, str(event._data["text"]))
        return self._done(user, shown, settings, request)

    def delete(self, shown: str, request: gr.Request, *values: Any) -> Update:
        """The preset goes, the chat keeps its settings."""
        _, user = self._session_of(request)
        settings = chat_settings.read(list(values))
        if settings.preset_id is not None:
            self._service.presets.delete(user, settings.preset_id)
        return self._done(user, shown, replace(settings, preset_id=None), request)

    def default(self, shown: str, event: gr.EventData, request: gr.Request, *values: Any) -> Update:
        """New chats begin with it, or no longer."""
        _, user = self._session_of(request)
        settings = chat_settings.read(list(values))
        self._service.presets.set_default(user, settings.preset_id if event._data["on"] else None)
        return self._done(user, shown, settings, request)

    def _done(
        self, user: int, shown: str, settings: ChatSettings, request: gr.Request, *, fields: bool = False
    ) -> Update:
        """Keep the settings as `_let` does, and clear the remark about an earlier failure."""
        session, _ = self._session_of(request)
        session.remark = ""
        session.settings_seen = self._service.changes.settings_changed(user)
        return self._let(user, shown, settings, request, fields=fields)

    def _let(
        self, user: int, shown: str, settings: ChatSettings, request: gr.Request, *, fields: bool = False
    ) -> Update:
        """The chat has these settings from now on; the panel says so, if it is still that chat's."""
        session, _ = self._session_of(request)
        chat = chat_settings.number(shown)
        if chat:
            chat_settings.keep(self._service, session, user, chat, settings)
        if chat != (session.conversation or 0):
            return self._nothing()
        return chat_settings.drawn(
            self._parts.settings, self._service.presets.all(user), settings, fields=fields, stored=bool(chat)
        ) | self._views.live(session, user)

    def _nothing(self) -> Update:
        return {self._parts.live: gr.skip()}
