"""`hierchat serve`, which is `hierchat` alone and `python app.py`, too: builds the page and serves it."""

from __future__ import annotations

import argparse
import ctypes
import errno
import logging
import os
import platform
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from hierchat import logs
from hierchat.config import database_file
from hierchat.models.catalogue import Backend

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Scope

    from hierchat.models.catalogue import ModelEntry
    from hierchat.store import Access, Store

log = logging.getLogger(__name__)
_END_SECONDS = 10.0
_EARLIER = "me"
"""Whose the chats of everybody with the password were up to version 0.1."""
PORTS = range(1, 65536)
_M_ARENA_MAX, _ARENAS = -8, 2
"""mallopt's name for how many arenas there are at most, and how many are enough: the interpreter's lock lets one thread
allocate at a time, mostly."""


class ServeError(Exception):
    """The page cannot be served as the flags say; the text is for the user."""


def add_serve(commands: Any) -> None:
    """The flags."""
    parser = commands.add_parser("serve", help="the chat, in the browser; what a call without a command does")
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="a name from `models list` (its default), or a folder or GGUF file, which joins that list",
    )
    parser.add_argument(
        "--backend",
        choices=get_args(Backend),
        help="what computes it (default: the fastest that this machine has)",
    )
    add_page_flags(parser)


def add_page_flags(parser: argparse.ArgumentParser) -> None:
    """Those that are about the page, whatever computes the model."""
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; all but loopback need a login"
    )
    parser.add_argument("--port", type=_port, default=7860, help="(7860)")
    parser.add_argument("--share", action="store_true", help="a public link, relayed through a third party")
    parser.add_argument("--db", type=Path, metavar="FILE", help="the database")
    parser.add_argument("--auth", action="store_true", help="ask for a login on loopback too")
    parser.add_argument(
        "--api", action="store_true", help="answer other programs that have a key (docs/serving.md)"
    )
    parser.add_argument(
        "--api-open", action="store_true", help="the same, and programs on this machine without a key"
    )
    # Not to undo a --verbose that stands before the command
    parser.add_argument(
        "--verbose", action="store_true", default=argparse.SUPPRESS, help="say more in the terminal"
    )


def serve(args: argparse.Namespace, added: Mapping[str, ModelEntry] | None = None) -> int:
    """Serve the page until the process is interrupted or told to end (shutdown.py); the model loads meanwhile. Returns
    the exit code. `added`: models of this run, beside those of the catalogue."""
    # Before gradio and huggingface_hub are imported: both read these once. Nothing about this machine leaves it.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    share_arenas()

    from hierchat.models.catalogue import read_catalogue
    from hierchat.runtime.slot import ModelHost

    host = ModelHost(read_catalogue(), backend=args.backend, added=added)
    name = args.model or host.names[0]
    if name not in host.names:
        raise ServeError(f"No model is called {name!r}. There are: {', '.join(host.names)}.")
    _require_address(args.host, args.port)
    database = database_file(args.db)

    from hierchat.api.endpoint import Endpoint
    from hierchat.chat.in_progress import none_outlives
    from hierchat.chat.service import ChatService
    from hierchat.cli import progress
    from hierchat.page import page_app
    from hierchat.page.page_app import build_app
    from hierchat.store import Store

    # Without these flags, the switch in Settings counts.
    access: Access | None = "open" if args.api_open else "keys" if args.api else None
    with (
        none_outlives(_END_SECONDS),  # after the store: what was not finished is interrupted, not stopped
        Store.open(database, access=access) as store,
        closing(ChatService(store, host)) as service,
        ExitStack() as ending,
    ):
        page_app.sweep()
        login = page_app.login(args.host, args.share, args.auth, store)
        log_ins = login[0] if login else None
        if log_ins:
            ending.callback(log_ins.close)

        def before(page: ASGIApp, is_local: Callable[[Scope], bool]) -> ASGIApp:
            return Endpoint(page, service, is_local)

        app = build_app(service, str(database), log_ins)
        try:
            local, public = page_app.serve(app, log_ins, args.host, before, port=args.port, share=args.share)
        except OSError as error:
            raise ServeError(
                f"Cannot serve on {args.host} port {args.port}. Choose another --port or --host."
            ) from error
        logs.take_over("uvicorn")
        log.info("serving, on Python %s, %s", platform.python_version(), platform.platform())
        print(f"hierchat is at {local}\nYour data: {database}", flush=True)
        if store.notice:
            print(store.notice, flush=True)
        if (endpoint := store.keys.access()) != "off":
            keys = "" if store.keys.all() or endpoint == "open" else " `hierchat keys add NAME` makes a key."
            print(f"Other programs: {local}v1{keys}", flush=True)
        if args.share:
            print(f"Public link: {public or 'could not be made; the local address works'}")
            print("It relays everything through a third party's servers: it is not private from end to end.")
        if login:
            print(_how_to_log_in(store, login[1]), flush=True)
        host.start(name)
        progress.follow(host)
        app.block_thread()
    return 0


def share_arenas() -> None:
    """Have threads that are begun from now on allocate from the same memory. glibc gives each an arena of its own, up
    to eight for each core, and an arena keeps what is freed in it: with threads for each reply that was 130 MB."""
    if platform.libc_ver()[0] == "glibc" and "MALLOC_ARENA_MAX" not in os.environ:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)


def _how_to_log_in(store: Store, guest_password: str) -> str:
    if names := [account.name for account in store.accounts.all()]:
        return f"Log in with an account: {', '.join(names)}."
    said = (
        f"Log in as 'guest' with the password {guest_password} (shown only once).\n"
        "Guests' chats are deleted when they log out. Accounts keep them: hierchat users add NAME"
    )
    if (user := store.users.ids().get(_EARLIER)) is not None and store.users.counts(user)[0]:
        said += f"\nChats of logins before there were accounts are kept: hierchat users add {_EARLIER} opens them."
    return said


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) not in PORTS:
        raise argparse.ArgumentTypeError(f"{text} is no port; give a number from 1 to {PORTS[-1]}")
    return int(text)


def _require_address(host: str, port: int) -> None:
    """Raises ServeError with the reason where nothing can listen there."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            if os.name != "nt":  # there, it would let two programs share the port
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, UnicodeError) as error:
        raise ServeError(_address_error(host, port, error)) from error


def _address_error(host: str, port: int, error: Exception) -> str:
    number = getattr(error, "errno", None)
    if number == errno.EADDRINUSE:
        return f"Port {port} of {host} is in use by another program. Choose another one with --port."
    if number in (errno.EACCES, errno.EPERM):
        return f"The system does not let you use port {port}. Choose one from 1024 up with --port."
    return f"{host!r} is no address of this machine. Leave --host out to listen on 127.0.0.1."
