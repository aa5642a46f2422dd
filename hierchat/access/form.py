"""Draw the pages of the login: forms that work without scripts, and fetch nothing."""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from string import Template
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse

from hierchat.config import shipped
from hierchat.language import current

_MOST_BYTES = 4096


class FormTooLong(ValueError):
    """Raised when a form's body is longer than anybody types."""


@dataclass(frozen=True, slots=True)
class FormField:
    """One input of a form. `autocomplete`: the attribute of HTML; for passwords it tells old from new."""

    name: str
    label: str
    autocomplete: str
    value: str = ""


async def form_values(request: Request, *names: str) -> list[str]:
    """Read these fields of a form, stripped of blanks; empty where nothing was sent. Raises FormTooLong."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise FormTooLong
    given = parse_qs(body.decode("latin-1"), encoding="utf-8")
    return [given.get(name, [""])[-1].strip() for name in names]


def form_page(
    title: str,
    fields: Sequence[FormField],
    action: str,
    about: str,
    said: str = "",
    status: int = 200,
    *,
    heading: str = "hierchat",
) -> HTMLResponse:
    """Draw an HTML page with a form, or only its text if there are no fields. The first empty field has the focus.
    `action`: the button's name; `about`: HTML below the form; `said`: how the last try went."""
    palette = (shipped("assets") / "style" / "palette.css").read_text(encoding="utf-8")
    icon = base64.b64encode((shipped("assets") / "icon.svg").read_bytes()).decode()
    told = f'<p id="said" role="{"alert" if fields else "status"}">{html.escape(said)}</p>' if said else ""
    first = next((field for field in fields if not field.value), None)
    lines = "\n".join(_line(field, focus=field is first, described=bool(said)) for field in fields)
    form = f'<form method="post">\n{told}\n{lines}\n<button>{html.escape(action)}</button>\n</form>'
    filled = Template((shipped("assets") / "form.html").read_text(encoding="utf-8")).substitute(
        language=current(),
        title=html.escape(title),
        heading=html.escape(heading),
        # Without scripts, the colours of the dark theme come by what the browser prefers.
        palette=palette.replace(".dark {", "@media (prefers-color-scheme: dark) { :root {") + "}",
        icon=icon,
        said="" if fields else told,
        form=form if fields else "",
        about=about,
    )
    # Under "no-referrer", a browser would send the form with the Origin "null".
    return HTMLResponse(filled, status, {"Cache-Control": "no-store", "Referrer-Policy": "same-origin"})


def _line(field: FormField, *, focus: bool, described: bool) -> str:
    kind = f'value="{html.escape(field.value)}" autocapitalize="none" spellcheck="false"'
    if field.autocomplete.endswith("password"):
        kind = 'type="password"'
    more = (' aria-describedby="said"' if described else "") + (" autofocus" if focus else "")
    return (
        f'<label>{html.escape(field.label)} <input name="{field.name}" {kind} autocomplete="{field.autocomplete}" '
        f"required{more}></label>"
    )
