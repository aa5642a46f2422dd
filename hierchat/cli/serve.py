"""Define `hierchat serve`. `hierchat` without a command and `python app.py` do the same."""

import logging
import os
import platform
import socket
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from hierchat import logs
from hierchat.cli import options
from hierchat.config import database_file
from hierchat.language import _

if TYPE_CHECKING:
    from hierchat.models.catalogue import Backend
    from hierchat.store import Access, Store

log = logging.getLogger(__name__)
_END_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class PageFlags:
    host: str
    port: int
    share: bool
    db: Path | None
    auth: bool
    api: bool
    api_open: bool
    public_url: str = ""


@click.command("serve", cls=options.Command)
@options.model_option
@options.backend_option
@click.option("--host", default="127.0.0.1", help="address to listen on; all but loopback need a login")
@click.option("--port", type=click.IntRange(1, 65535), default=7860, metavar="PORT", help="(7860)")
@click.option("--share", is_flag=True, help="a public link, relayed through a third party")
@click.option(
    "--public-url",
    default="",
    metavar="URL",
    callback=lambda context, option, url: public_address(url),
    help="https address of a proxy that hands requests on (docs/serving.md); needs a login",
)
@options.database_option
@click.option("--auth", is_flag=True, help="ask for a login on loopback too")
@click.option("--api", is_flag=True, help="answer other programs that have a key (docs/serving.md)")
@click.option("--api-open", is_flag=True, help="the same, and programs on this machine without a key")
@click.option("--verbose", is_flag=True, expose_value=False, help="say more in the terminal")
def serve_command(model: str | None, backend: "Backend | None", **flags: Any) -> int:
    """Serve the page over a model of this machine."""
    return serve(PageFlags(**flags), options.catalogue_name(model), backend)


def serve(flags: PageFlags, model: str | None, backend: "Backend | None" = None) -> int:
    """Serve the page until a signal ends the process (shutdown.py); return the exit code. The model loads meanwhile."""
    # Before gradio and huggingface_hub are imported: both read these once. Nothing about this machine leaves it.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

    from hierchat.models.catalogue import read_catalogue
    from hierchat.runtime.model_slot import ModelSlot

    require_address(flags.host, flags.port)
    database = database_file(flags.db)

    from hierchat.access.files import sweep
    from hierchat.api.endpoint import Endpoint
    from hierchat.chat.in_progress import none_outlives
    from hierchat.chat.service import ChatService
    from hierchat.cli.screen import follow_loading
    from hierchat.page import page_app
    from hierchat.store import Store

    # Without these flags, the switch in Settings counts.
    access: Access | None = "open" if flags.api_open else "keys" if flags.api else None
    with (
        none_outlives(_END_SECONDS),  # after the store: what was not finished is interrupted, not stopped
        Store.open(database, access=access) as store,
        ExitStack() as ending,
    ):
        slot = ModelSlot(read_catalogue(), backend=backend, learned=store.learned)
        name = model or slot.names[0]
        if name not in slot.names:
            raise options.CommandError(f"No model is called {name!r}. There are: {', '.join(slot.names)}.")
        service = ending.enter_context(closing(ChatService(store, slot)))
        sweep()
        login = page_app.login(flags.host, flags.share or bool(flags.public_url), flags.auth, store)
        log_ins = login[0] if login else None
        if log_ins:
            ending.callback(log_ins.close)

        app = page_app.build_app(service, log_ins)
        local, public = page_app.serve(
            app,
            log_ins,
            flags.host,
            lambda page, is_local: Endpoint(page, service, is_local),
            port=flags.port,
            share=flags.share,
            public_url=flags.public_url,
        )
        logs.take_over("uvicorn")
        log.info("serving, on Python %s, %s", platform.python_version(), platform.platform())
        print(_("hierchat is at {address}").format(address=local))
        print(_("Your data: {path}").format(path=database), flush=True)
        if (endpoint := store.keys.access()) != "off":
            print(_("Other programs: {address}").format(address=f"{local}v1"), flush=True)
            if endpoint != "open" and not store.keys.all():
                print(_("`hierchat keys add NAME` makes a key."), flush=True)
        if flags.share:
            none = _("The public link could not be made; the local address works.")
            print(_("Public link: {address}").format(address=public) if public else none)
            print(
                _("It relays everything through a third party's servers: it is not private from end to end.")
            )
        if login:
            print(_how_to_log_in(store, login[1]), flush=True)
        slot.start(name)
        follow_loading(slot)
        app.block_thread()
    return 0


def public_address(url: str) -> str:
    """Return a proxy's address without the slash at its end. Raises CommandError if it is no address."""
    from hierchat.access.hosts import parse_authority

    parts = urlsplit(url)
    if url and (
        parts.scheme != "https" or not parse_authority(parts.netloc) or parts.query or parts.fragment
    ):
        raise options.CommandError(
            f"--public-url is what browsers open, such as https://chat.example.org, and {url!r} is not."
        )
    return url.rstrip("/")


def _how_to_log_in(store: "Store", guest_password: str) -> str:
    if names := [account.name for account in store.accounts.all()]:
        return f"Log in with an account: {', '.join(names)}."
    return (
        f"Log in as 'guest' with the password {guest_password} (shown only once).\n"
        "Guests' chats are deleted when they log out. Accounts keep them: hierchat users add NAME"
    )


def require_address(host: str, port: int) -> None:
    """Raise CommandError with the reason if nothing can listen on this host and port."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        socket.create_server(address, family=family).close()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        why = f"Cannot listen on {host} port {port} ({reason}). Choose another --port or --host."
        raise options.CommandError(why) from error
