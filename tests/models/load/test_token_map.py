"""Which tokenizers mean the same tokens by the same ids."""

from pathlib import Path

from transformers import AutoTokenizer

from hierchat.models.load.tokenizer_files import same_tokens


def test_same_tokens(tiny_folder: Path) -> None:
    target, draft = AutoTokenizer.from_pretrained(tiny_folder), AutoTokenizer.from_pretrained(tiny_folder)
    assert same_tokens(target, draft) is None
    draft.add_tokens(["longer"])
    assert same_tokens(target, draft) == "the target has 259 tokens and the draft model 260"
    target.add_tokens(["other"])
    reason = same_tokens(target, draft)
    assert reason == "the target's token 'other' with number 259 does not exist in the draft model"
