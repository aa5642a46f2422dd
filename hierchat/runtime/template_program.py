"""Render chat templates: a program with limits of time and memory, because a template is a stranger's code."""

import html  # noqa: F401
import json
import textwrap  # noqa: F401
from datetime import datetime
from functools import cache, lru_cache
from typing import Any, Literal

import jinja2
import jinja2.constants  # as html and textwrap, imported by jinja2 when it is needed: too late
import jinja2.debug
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError

from hierchat.child_process import TOO_MUCH, most_bytes, serve

Answer = dict[Literal["text", "refused", "broken", "unsafe", "too_much"], str]
"""One of: the text; the template's refusal; its fault; a forbidden access; a limit that it reached."""


def answer(request: bytes) -> bytes:
    """Answer one request, a line of JSON, by a line."""
    found, most = _answer(json.loads(request)), most_bytes(request)
    if len(found.get("text", "")) < most:
        made = json.dumps(found).encode() + b"\n"
        if len(made) <= most:
            return made
    return f'{TOO_MUCH}"text"}}\n'.encode()


def _answer(asked: dict[str, Any]) -> Answer:
    try:
        try:
            if "variables" not in asked:  # for control tokens, which transformers looks for in these
                tree = _environment().parse(asked["template"])
                found = {node.data for node in tree.find_all(nodes.TemplateData)}
                found |= {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
                return {"text": "\0".join(sorted(found))}
            template = _compiled(asked["template"])
        except (jinja2.TemplateError, RecursionError, SyntaxError) as error:
            return {"broken": str(error) or "it is nested too deep"}
        return {"text": template.render(**asked["variables"])}
    except SecurityError as error:
        return {"unsafe": str(error)}
    except MemoryError:
        return {"too_much": "memory"}
    except Exception as error:  # a template can raise whatever Python does
        return {"refused": str(error)}


@lru_cache(8)
def _compiled(template: str) -> jinja2.Template:
    return _environment().from_string(template)


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    made.filters["tojson"] = _tojson
    made.globals |= {
        "raise_exception": _raise,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return made


class _Generation(Extension):
    """Accept `{% generation %}` around replies, which matters only in training."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_itself"), [], [], body).set_lineno(line)

    def _itself(self, caller: Any) -> str:
        return str(caller())


class _Dict:
    """Make dictionaries in templates: `dict`, from which nothing else can be reached."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _Namespace(jinja2.utils.Namespace):
    """Hold variables in templates: `namespace` without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, given = args[0], dict(*args[1:], **kwargs)
        for name in given:
            _require_open(name)
        jinja2.utils.Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: Any) -> None:
        _require_open(name)
        super().__setitem__(name, value)


def _require_open(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"attribute {name!r} of a namespace")


def _raise(message: Any) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


if __name__ == "__main__":
    # Reads the time zone before files are closed
    _answer({"template": "{{ strftime_now('%Y') }}", "variables": {}})
    serve(answer)
