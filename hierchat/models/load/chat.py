"""What a chat needs of a tokenizer, for files that do not say it: a template, and which tokens end a turn."""

from __future__ import annotations

from dataclasses import replace

from hierchat.models.load.loaded import LoadedModel

PLAIN_TEMPLATE = (
    "{{ bos_token or '' }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""A conversation as text to be continued."""
NO_TEMPLATE = (
    "{} brings no chat template: it was made to continue texts. It gets the conversation as text, and may go on in "
    "your name."
)
TURN_ENDS = ("<end_of_turn>", "<turn|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|return|>", "<|call|>")
"""Control tokens behind a turn. GGUF files often name the end of a text alone."""
MESSAGE_END = "<|end|>"
"""The same, but where a turn is several messages, such as gpt-oss' thought and answer: then those have channels."""
CHANNEL = "<|channel|>"


def ready_to_chat(loaded: LoadedModel) -> LoadedModel:
    """The model with a template and all tokens that end its turns; its note says where it was made for another use."""
    tokenizer = loaded.tokenizer
    vocabulary, added = tokenizer.get_vocab(), tokenizer.added_tokens_decoder
    names = TURN_ENDS if CHANNEL in vocabulary else (*TURN_ENDS, MESSAGE_END)
    ends = {vocabulary[token] for token in names if token in vocabulary}
    ends = {token for token in ends if token in added and added[token].special}
    note = loaded.note
    if not tokenizer.chat_template:
        tokenizer.chat_template = PLAIN_TEMPLATE
        note = " ".join(filter(None, [note, NO_TEMPLATE.format(loaded.name)]))
    return replace(loaded, end_ids=loaded.end_ids | ends, note=note)
