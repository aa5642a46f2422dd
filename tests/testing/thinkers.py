"""Tiny tokenizers with the marks and the chat templates of families that think, written by hand and short."""

import copy
from typing import Any

from tokenizers import AddedToken

from tests.testing.tiny_chat import tokenizer

_CHATML = "<|im_start|>{{ m.role }}\n{{ content }}<|im_end|>\n"
_BEGIN = "{% if add_generation_prompt %}<|im_start|>assistant\n"
_DROPS = (
    "{% set content = m.content %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}"
    "{% endif %}"
)
QWEN3 = (  # thinks by itself; an empty thought in the prompt keeps it from it
    "{% for m in messages %}"
    "{% set content = m.content %}{% set thought = m.reasoning_content or '' %}"
    "{% if thought and loop.last %}{% set content = '<think>' + thought + '</think>' + content %}{% endif %}"
    f"{_CHATML}{{% endfor %}}{_BEGIN}"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
DEEPSEEK = f"{{% for m in messages %}}{_DROPS}{_CHATML}{{% endfor %}}{_BEGIN}<think>\n{{% endif %}}"
"""Its prompt opens the thought."""
KEEPS = (
    f"{{% for m in messages %}}{{% set content = m.content %}}{_CHATML}{{% endfor %}}{_BEGIN}{{% endif %}}"
)
GPT_OSS = (
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort or 'medium' }}<|end|>"
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% if m.thinking and loop.last %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>"
    "{% endif %}"
    "<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
GEMMA4 = (
    "{% if enable_thinking %}<|turn>system\n<|think|><turn|>\n{% endif %}"
    "{% for m in messages %}<|turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content.split('<channel|>')[-1] }}<turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)
GRANITE = (
    "{% if thinking %}<|im_start|>system\nThink first.<|im_end|>\n{% endif %}"
    f"{{% for m in messages %}}{_DROPS}{_CHATML}{{% endfor %}}{_BEGIN}{{% endif %}}"
)
_PLAIN = ("<think>", "</think>")
_HARMONY = ("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|return|>")


def thinker(template: str) -> Any:
    """The tiny tokenizer of the chat tests with this template, and the marks that it has."""
    made = copy.deepcopy(tokenizer())
    special = {
        GPT_OSS: _HARMONY,
        GEMMA4: ("<|channel>", "<channel|>", "<|turn>", "<turn|>", "<|think|>"),
    }.get(template, ())
    made.add_tokens(
        [AddedToken(mark, special=True, normalized=False) for mark in special], special_tokens=True
    )
    if not special:
        made.add_tokens([AddedToken(mark, normalized=False) for mark in _PLAIN])
    made.chat_template = template
    return made
