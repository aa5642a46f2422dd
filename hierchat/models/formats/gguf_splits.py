"""The ways to split text before merging that GGUF files name, and which tokenizers can be built."""

from __future__ import annotations

from hierchat.models.formats.gguf_head import Head

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
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")
SPLITS: dict[str, str | tuple[str, ...]] = {
    "a.x-4.0": GPT2,
    "chatglm-bpe": _LLAMA3,
    "command-r": DIGITS,
    "dbrx": _LLAMA3,
    "deepseek-coder": _DEEPSEEK_CODER,
    "deepseek-r1-qwen": _QWEN2,
    "exaone4": GPT2,
    "falcon3": _LLAMA3,
    "glm4": _LLAMA3,
    "gpt-4o": _GPT4O,
    "kormo": _QWEN2,
    "lfm2": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "megrez": _QWEN2,
    "mellum": GPT2,
    "midm-2.0": _LLAMA3,
    "minerva-7b": DIGITS,
    "olmo": GPT2,
    "pixtral": _LLAMA3,
    "qwen2": _QWEN2,
    "qwen35": _QWEN35,
    "refact": DIGITS,
    "seed-coder": _SEED,
    "smaug-bpe": _LLAMA3,
    "smollm": DIGITS,
    "starcoder": DIGITS,
    "tekken": _TEKKEN,
    "trillion": GPT2,
}
"""How text is split before merging, by the file's name for it: a pattern, several of which each splits what those
before it left, GPT-2's way, or each digit by itself and the rest as GPT-2 did."""
COMPOSED = ("command-r", "olmo", "qwen2", "qwen35")
"""Whose text is brought into Unicode's composed form (NFC) first, as their publisher's tokenizers do."""
WHOLE_WORDS = ("falcon3", "lfm2", "llama-bpe", "llama-v3", "llama3", "midm-2.0", "pixtral", "tekken")
"""Whose words are tokens wherever the vocabulary has them, also where no merges lead there."""
SCORED = "gemma3n"
"""An architecture whose files have scores in place of merges, and which transformers does not read. Others that have
them are left to it."""


def unknown_tokenizer(head: Head) -> str | None:
    """Why a file's tokenizer cannot be built here, by its head; None where nothing speaks against it."""
    kind, split = (head.values.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    if head.architecture == SCORED or (kind == "gpt2" and split in SPLITS):
        return None
    return f"its way to split text is not known here ({split or kind or 'it names none'})"
