"""From the flags to a chat that can begin: over a server if there is one, else by a model in this process."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial

from hierchat.config import database_file
from hierchat.store import LOCAL_USER, ChatSettings, Store
from hierchat.terminal.errors import TerminalError
from hierchat.terminal.server import USUAL, Server
from hierchat.terminal.stored import Kept, StoredTalk, earlier, last_chat
from hierchat.terminal.talk import Talk, TalkInMemory, require

KEY = "HIERCHAT_KEY"


@contextmanager
def opened(args: argparse.Namespace) -> Iterator[Talk]:
    """The chat of the flags, its model ready. Raises what keeps it from beginning."""
    if args.alone and args.url:
        raise TerminalError("--alone and --url are opposites. Give one of the two.")
    if args.go_on and args.no_history:
        raise TerminalError("--continue needs what --no-history leaves out. Give one of the two.")
    server = _server(args)
    with ExitStack() as stack:
        talk = _over_server(server, args, stack) if server else _by_itself(args, stack)
        talk.changes.system_prompt = args.system
        given = {
            "temperature": args.temperature, "seed": args.seed, "max_new_tokens": args.max_new_tokens
        }  # fmt: skip
        talk.changes.sampling.update({name: value for name, value in given.items() if value is not None})
        yield talk


def _server(args: argparse.Namespace) -> Server | None:
    """The one that was named, else a hierchat that runs on this machine and has the model; None where there is none."""
    key = args.key or os.environ.get(KEY)
    server = Server(args.url or USUAL, key)
    if args.url:
        server.choose(args.model) if args.model else server.choose_any()
        return server
    if args.alone or args.backend or not server.is_hierchat():
        return None
    try:
        server.choose(args.model) if args.model else server.choose_any()
    except TerminalError:  # it has not that model
        return None
    return server


def _over_server(server: Server, args: argparse.Namespace, stack: ExitStack) -> Talk:
    if args.no_history:
        return TalkInMemory(server, server.complete, lambda number: ChatSettings("", {}))
    store = _store(args, stack)
    user = store.ensure_user(LOCAL_USER)
    kept = Kept(store, user)
    number = last_chat(store, user) if args.go_on else None
    chat = None if number is None else store.chat(user, number)
    talk = TalkInMemory(server, server.complete, kept.settings, kept, chat, number)
    talk.earlier = partial(earlier, store, user)
    return talk


def _store(args: argparse.Namespace, stack: ExitStack) -> Store:
    store = stack.enter_context(Store.open(database_file(args.db)))
    if store.notice:
        print(store.notice, file=sys.stderr)
    return store


def _by_itself(args: argparse.Namespace, stack: ExitStack) -> Talk:
    # These take a second to import: only where this process answers
    from hierchat.chat.service import ChatService
    from hierchat.chat.settings import settings_of
    from hierchat.models.catalogue import read_catalogue
    from hierchat.runtime.host import ModelHost
    from hierchat.terminal.own import OwnModel

    host = ModelHost(read_catalogue(), backend=args.backend)
    name = args.model or host.names[0]
    require(name, host.names)
    store = _store(args, stack)
    user = store.ensure_user(LOCAL_USER)
    number = last_chat(store, user) if args.go_on else None
    service = stack.enter_context(closing(ChatService(store, host)))
    model = OwnModel(service)
    model.choose(name)
    if not args.no_history:
        talk = StoredTalk(service, model, user, number)
        talk.earlier = partial(earlier, store, user)
        return talk
    return TalkInMemory(model, partial(model.complete, user), lambda _: settings_of(service, user, None))
