"""Build the tokenizer of a GGUF file, BPE of bytes or Gemma's, from vocabulary and merges (or scores) in a second.
Transformers takes tens of seconds, and leaves out SmolLM's digits, Qwen's normal form and Llama 3's whole words.
Other kinds are left to transformers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from hierchat.models.formats.gguf_head import Head, read_head
from hierchat.models.progress import BrokenFileError

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN35 = _QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
_LLAMA3 = _QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|")
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ENDS"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*ENDS"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O = _CASED.replace("ENDS", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?")
_TEKKEN = _CASED.replace("ENDS", "").replace("{1,3}", "")
_SEED = _QWEN2.replace(r"\p{N}]+[\r\n]*", r"\p{N}\r\n]+")
DIGITS, GPT2 = "digits", "gpt2"
_MINICPM5 = (
    r"\p{N}{1,3}", r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)  # fmt: skip
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")
SPLITS: dict[str, str | tuple[str, ...]] = {
    **dict.fromkeys(("a.x-4.0", "exaone4", "mellum", "olmo", "trillion"), GPT2),
    **dict.fromkeys(("command-r", "minerva-7b", "refact", "smollm", "starcoder"), DIGITS),
    **dict.fromkeys(
        ("chatglm-bpe", "dbrx", "falcon3", "glm4", "lfm2", "llama-bpe", "llama-v3", "llama3"), _LLAMA3
    ),
    **dict.fromkeys(("midm-2.0", "pixtral", "smaug-bpe"), _LLAMA3),
    **dict.fromkeys(("deepseek-r1-qwen", "kormo", "megrez", "qwen2"), _QWEN2),
    "deepseek-coder": _DEEPSEEK_CODER,
    "gpt-4o": _GPT4O,
    "minicpm5": _MINICPM5,
    "qwen35": _QWEN35,
    "seed-coder": _SEED,
    "tekken": _TEKKEN,
}
"""How text is split before merging, by the file's name for it: patterns applied in turn, or one of GPT-2's ways."""
COMPOSED = ("command-r", "olmo", "qwen2", "qwen35")
"""Whose text is brought into Unicode's composed form (NFC) first, as their publisher's tokenizers do."""
WHOLE_WORDS = (
    "falcon3",
    "lfm2",
    "llama-bpe",
    "llama-v3",
    "llama3",
    "midm-2.0",
    "minicpm5",
    "pixtral",
    "tekken",
)
"""Whose words are tokens wherever the vocabulary has them, also where no merges lead there."""
SCORED = "gemma3n"
"""An architecture whose files have scores in place of merges, and which transformers does not read."""


def unknown_tokenizer(head: Head) -> str | None:
    """Return why a file's tokenizer cannot be built here, by its head; None if it can."""
    kind, split = (head.values.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    if head.architecture == SCORED or (kind == "gpt2" and split in SPLITS):
        return None
    return f"its way to split text is not known here ({split or kind or 'it names none'})"


_PREFIX = "tokenizer.ggml."
ARRAYS = tuple(f"{_PREFIX}{key}" for key in ("tokens", "scores", "merges", "token_type"))
_MOST_SQUARES = 1 << 30
"""Sum of the squares of characters of tokens and merges: the largest tokenizers have 20 million."""
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
_SPACE = "\u2581"
_NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def require_bounded_tokens(gguf: Path, values: Mapping[str, Any]) -> None:
    """Check that a tokenizer's texts are not absurdly long. `values`: of the file's head. Raises BrokenFileError."""
    texts = (text for key in ("tokens", "merges") for text in values.get(_PREFIX + key) or ())
    if sum(len(text) ** 2 for text in texts) > _MOST_SQUARES:
        raise BrokenFileError(f"{gguf} has a tokenizer of strange size. Choose another file.")


def write_tokenizer(gguf: Path, folder: Path) -> bool:
    """Write tokenizer.json, tokenizer_config.json and the chat template; False, and nothing, if it cannot be built
    here. Raises BrokenFileError."""
    values = read_head(gguf, ARRAYS).values
    require_bounded_tokens(gguf, values)
    said = {key.removeprefix(_PREFIX): value for key, value in values.items() if key.startswith(_PREFIX)}
    try:
        named = {
            name: said["tokens"][said[f"{key}_token_id"]] if f"{key}_token_id" in said else None
            for name, key in _NAMED.items()
        }
        if scored := values.get("general.architecture") == SCORED:
            said["merges"] = _merges_by_score(said)
        tokenizer = _build(said, named, by_characters=scored or said.get("model") == "gemma4")
    except Exception:  # the tokenizers library raises nothing more exact; transformers says what is wrong
        return False
    if tokenizer is None:
        return False
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "TokenizersBackend", **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    if template := values.get("tokenizer.chat_template"):
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8", newline="\n")
    return True


def _build(said: dict[str, Any], named: dict[str, str | None], *, by_characters: bool) -> Tokenizer | None:
    """Build a tokenizer of bytes, or `by_characters` Gemma's kind, with byte fallback."""
    tokens, split = said["tokens"], said.get("pre")
    if said.get("add_space_prefix") if by_characters else said.get("model") != "gpt2" or split not in SPLITS:
        return None
    merges = [tuple(merge.split(" ")) for merge in said["merges"]]
    by_type = list(zip(tokens, said.get("token_type") or [], strict=False))
    control = [token for token, kind in by_type if kind == _CONTROL]
    needed = [token for token in named.values() if token is not None]
    if by_characters:
        vocabulary = {token: number for number, token in enumerate(tokens)}
        model = models.BPE(
            vocabulary, merges, unk_token=named["unk_token"], fuse_unk=True, byte_fallback=True
        )
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        control = list(dict.fromkeys([*control, *needed]))
    else:
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        alphabet = set(bytes_only.alphabet())
        spelled = [
            token if set(token) <= alphabet else bytes_only.pre_tokenize_str(token)[0][0] for token in tokens
        ]
        vocabulary = {token: number for number, token in enumerate(spelled)}
        affixes = {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
        whole = split in WHOLE_WORDS
        tokenizer = Tokenizer(models.BPE(vocabulary, merges, **affixes, fuse_unk=False, ignore_merges=whole))
        tokenizer.normalizer = normalizers.NFC() if split in COMPOSED else None
        tokenizer.pre_tokenizer = _splitter(SPLITS[str(split)], bytes_only)
        tokenizer.decoder = decoders.ByteLevel()
        # A control token that is not spelled as bytes are is none: files mark some by mistake
        control = [token for token in control if set(token) <= alphabet]
        if not set(needed) <= set(control):
            return None
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in control])
    plain = [token for token, kind in by_type if kind == _USER_DEFINED and token in vocabulary]
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in plain])
    tokenizer.post_processor = _around(tokenizer, said, named)
    return tokenizer


def _splitter(
    pattern: str | tuple[str, ...], bytes_only: pre_tokenizers.PreTokenizer
) -> pre_tokenizers.PreTokenizer:
    as_gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pattern == GPT2:
        return as_gpt2
    if pattern == DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), as_gpt2])
    patterns = (pattern,) if isinstance(pattern, str) else pattern
    splits = [pre_tokenizers.Split(Regex(one), "isolated") for one in patterns]
    return pre_tokenizers.Sequence([*splits, bytes_only])


def _merges_by_score(said: dict[str, Any]) -> list[str]:
    """Return the merges: the two tokens that lead to each other one. The higher its score, the earlier."""
    normal = {
        token: (-score, number)
        for number, (token, score, kind) in enumerate(
            zip(said["tokens"], said["scores"], said["token_type"], strict=True)
        )
        if kind == _NORMAL and " " not in token
    }
    found = [
        (normal[token][0], normal[token[:at]][1], normal[token[at:]][1], f"{token[:at]} {token[at:]}")
        for token in normal
        for at in range(1, len(token))
        if token[:at] in normal and token[at:] in normal
    ]
    return [merge for *_, merge in sorted(found)]


def _around(
    tokenizer: Tokenizer, said: dict[str, Any], named: dict[str, str | None]
) -> processors.TemplateProcessing:
    """Return the step that puts the tokens that the file wants before and behind a text."""
    begin = named["bos_token"] if said.get("add_bos_token") else None
    end = named["eos_token"] if said.get("add_eos_token") else None

    def around(text: str, kind: int) -> str:
        return " ".join(f"{part}:{kind}" for part in (begin, text, end) if part)

    return processors.TemplateProcessing(
        single=around("$A", 0),
        pair=f"{around('$A', 0)} {around('$B', 1)}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (begin, end) if token],
    )
