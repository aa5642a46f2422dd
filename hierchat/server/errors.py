"""What is said to a program that gets no reply: a status, and a sentence in OpenAI's form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from hierchat import logs
from hierchat.engine.decoding import PromptTooLong
from hierchat.engine.sampling.grammar import GrammarError
from hierchat.engine.scheduler import QueueFull
from hierchat.runtime.prompt import MessageTooLong
from hierchat.runtime.template import TemplateRefused
from hierchat.runtime.turn import NoModel
from hierchat.store import StoreError

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class Refused(Exception):
    """A request that is not answered. `param`: the field to blame; `code`: the case, as OpenAI calls it."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def kind(self) -> str:
        """OpenAI's `type`."""
        return _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    def body(self) -> dict[str, Any]:
        """The answer."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> JSONResponse:
        """The same, ready to be sent."""
        return JSONResponse(self.body(), self.status, self.headers)


def refused(error: Exception) -> Refused:
    """Any exception as one of these."""
    match error:
        case Refused():
            return error
        case ValidationError():
            return _field(error)
        case QueueFull():
            return Refused(429, str(error), code="rate_limit_exceeded", headers={"Retry-After": "5"})
        case NoModel():
            return Refused(503, str(error), code="model_not_loaded", headers={"Retry-After": "10"})
        case MessageTooLong() | PromptTooLong():
            return Refused(400, str(error), "messages", "context_length_exceeded")
        case StoreError():
            # It says where the database lies, which is for the owner's eyes.
            said = "hierchat's database cannot be used just now. Whoever runs hierchat sees why on its page."
            return Refused(503, said, headers={"Retry-After": "10"})
        case TemplateRefused():
            return Refused(400, str(error), "messages")
        case GrammarError():
            return Refused(
                400, f"The form that the reply is to have cannot be used: {error}", "response_format"
            )
        case HTTPException():
            said = "There is no such address here." if error.status_code == 404 else error.detail
            return Refused(error.status_code, said, headers=error.headers)
    return Refused(500, logs.said(error))


def _field(error: ValidationError) -> Refused:
    first = error.errors()[0]
    # A union names the branch that it tried, too: only what stands in the request is of use.
    place = ".".join(str(part) for part in first["loc"] if isinstance(part, int) or part.isidentifier())
    if first["type"] == "extra_forbidden":
        message = f"{place} is not supported here. Leave it out; docs/serving.md lists what is."
    elif first["type"] == "missing":
        message = f"{place} is missing."
    else:
        message = f"{place}: {first['msg']}." if place else f"{first['msg']}."
    code = "unsupported_parameter" if first["type"] == "extra_forbidden" else None
    return Refused(400, message, place or None, code)
