"""hierchat: a private chat on this machine. Parses the flags, builds the page and serves it."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import get_args

# Before gradio and huggingface_hub are imported: both read these once. Nothing about this machine leaves it.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

from hierchat.config import data_dir
from hierchat.models.catalogue import Backend


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(prog="app.py", description=__doc__)
    parser.add_argument("--model", help="a name from models.yaml (default: its default)")
    parser.add_argument(
        "--backend",
        choices=get_args(Backend),
        help="what computes it (default: the fastest that this machine has)",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; all but loopback need a login"
    )
    parser.add_argument("--port", type=int, default=7860)
    parser.add_argument("--share", action="store_true", help="a public link, relayed through a third party")
    parser.add_argument("--db", type=Path, default=data_dir() / "hierchat.db", help="the database file")
    parser.add_argument("--auth", action="store_true", help="ask for a login on loopback too")
    return parser.parse_args(argv)


def serve(args: argparse.Namespace) -> None:
    """Serve the page until the process is interrupted; the model loads meanwhile."""
    from hierchat.chat.host import ModelHost
    from hierchat.chat.service import ChatService
    from hierchat.models.catalogue import read_catalogue
    from hierchat.store import Store
    from hierchat.ui import launch, terminal
    from hierchat.ui.page import build_app

    host = ModelHost(read_catalogue(), backend=args.backend)
    name = args.model or host.names[0]
    if name not in host.names:
        raise ValueError(f"No model is called {name!r}. There are: {', '.join(host.names)}.")
    with Store.open(args.db) as store, closing(ChatService(store, host)) as service:
        auth = launch.login(args.host, args.share, args.auth)
        app = build_app(service, str(args.db.absolute()))
        try:
            _, local, public = app.launch(
                server_name=args.host, server_port=args.port, share=args.share, prevent_thread_lock=True,
                **launch.options(auth),
            )  # fmt: skip
        except OSError:
            raise OSError(
                f"Cannot serve on {args.host} port {args.port}: in use? Choose another --port."
            ) from None
        print(f"hierchat is at {local}\nYour data: {args.db.absolute()}", flush=True)
        if args.share:
            print(f"Public link: {public or 'could not be made; the local address works'}")
            print("It relays everything through a third party's servers: it is not private from end to end.")
        if auth:
            print(f"Log in as {auth[0]!r} with the password {auth[1]} (shown only once)", flush=True)
        host.start(name)
        terminal.follow(host)
        app.block_thread()


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0, or 1 after one line that says what is wrong."""
    args = parse(argv)
    from hierchat.models.errors import ModelError
    from hierchat.store import StoreError

    try:
        serve(args)
    except (StoreError, ModelError, OSError, ValueError) as error:
        print(f"hierchat: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
