"""/tokenize and /detokenize, as llama.cpp's server has them, with the tokens of the loaded model."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hierchat.runtime.hosted import Hosted
from hierchat.runtime.turn import NoModel
from hierchat.server.asking import Desk, fields
from hierchat.server.errors import Refused
from hierchat.server.requests import require_tokens
from hierchat.server.sampling import Strict

MOST_BYTES = 2 * 2**20
"""Of a text that is tokenised in one request, which nothing can end: some seconds' work."""


class Tokenize(Strict):
    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class Detokenize(Strict):
    tokens: list[Annotated[int, Field(ge=0)]]


async def tokenize(request: Request, desk: Desk) -> Response:
    """The tokens of a text."""
    asked, hosted = await fields(request, Tokenize), _hosted(desk)
    if len(asked.content.encode("utf-8", "replace")) > MOST_BYTES:
        raise Refused(413, f"The text is larger than {MOST_BYTES >> 20} MiB. Send it in parts.", "content")
    return JSONResponse({"tokens": await asyncio.to_thread(_tokens, hosted, asked)})


async def detokenize(request: Request, desk: Desk) -> Response:
    """The text of tokens."""
    asked, tokenizer = await fields(request, Detokenize), _hosted(desk).prompts.tokenizer
    known = len(tokenizer)
    if beyond := [token for token in asked.tokens if token >= known]:
        raise Refused(400, f"There is no token {beyond[0]}: the model has 0 to {known - 1}.", "tokens")
    text = await asyncio.to_thread(tokenizer.decode, asked.tokens, clean_up_tokenization_spaces=False)
    return JSONResponse({"content": text})


def _hosted(desk: Desk) -> Hosted:
    hosted = desk.service.host.hosted
    if hosted is None:
        raise NoModel("No model is loaded.")
    require_tokens(hosted)
    return hosted


def _tokens(hosted: Hosted, asked: Tokenize) -> list[Any]:
    tokenizer = hosted.prompts.tokenizer
    ids = tokenizer(
        asked.content,
        add_special_tokens=asked.add_special,
        split_special_tokens=not asked.parse_special,
        verbose=False,
    )["input_ids"]
    if not asked.with_pieces:
        return list(ids)
    pieces = (
        tokenizer.convert_ids_to_tokens(ids) if not hosted.is_local else [_piece(hosted, id) for id in ids]
    )
    return [{"id": id, "piece": piece} for id, piece in zip(ids, pieces, strict=True)]


def _piece(hosted: Hosted, token: int) -> str | list[int]:
    """Its text; its bytes where they are no text by themselves."""
    grammars = hosted.local.grammars
    written = grammars.bytes_of(token) if grammars else b""
    if not written:
        return str(hosted.prompts.tokenizer.convert_ids_to_tokens(token))
    try:
        return written.decode()
    except UnicodeDecodeError:
        return list(written)
