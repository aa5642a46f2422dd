"""Define `hierchat chat`, the chat in the terminal."""

from typing import Any

import click

from hierchat.cli import options


@click.command(
    "chat",
    cls=options.Command,
    help="A chat in the terminal. With a MESSAGE, or with text on standard input, it answers once.",
    epilog="This process loads the model, or a server answers with `--url`. The chats are those of the page.",
)
@click.argument("message", nargs=-1)
@options.model_option
@click.option("--system", metavar="TEXT", help="the system prompt of this chat")
@click.option("--temperature", type=options.temperature, metavar="N", help="0 takes the likeliest token")
@click.option("--seed", type=options.seed, metavar="N", help="same seed, same words")
@click.option("--max-new-tokens", type=options.max_tokens, metavar="N", help="the longest reply")
@click.option("--project", metavar="NAME", help="a chat of this project, with its documents")
@click.option("--continue", "go_on", is_flag=True, help="go on with your last chat")
@click.option("--no-history", is_flag=True, help="draft from no other chat of yours, and keep nothing")
@click.option("--json", is_flag=True, help="one JSON object: the text and what was measured")
@click.option(
    "--plain", is_flag=True, help="the text as it is, without colours (the default where it is piped)"
)
@click.option("--url", metavar="URL", help="a server that speaks OpenAI's protocol answers")
@click.option("--key", metavar="KEY", help=f"its key ({options.KEY_VARIABLE})")
@options.backend_option
@options.database_option
def chat_command(model: str | None, url: str | None, **flags: Any) -> int:
    from hierchat.cli.terminal import run  # this takes a second

    return run(options.ChatFlags(model=model if url else options.catalogue_name(model), url=url, **flags))
