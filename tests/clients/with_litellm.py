"""LiteLLM: whole, streamed, asynchronous, as a text that goes on, and what its errors are."""

from __future__ import annotations

import asyncio
import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it would fetch a list from the network

import litellm

address, key, _ = sys.argv[1:]
options = {"model": "openai/tiny", "api_base": address, "api_key": key, "num_retries": 0}
asked = [{"role": "user", "content": "hello"}]


def error(**wrong: object) -> str:
    try:
        litellm.completion(messages=asked, **options | wrong)
    except Exception as raised:
        return type(raised).__name__
    return "none"


whole = litellm.completion(messages=asked, **options)
stream = litellm.completion(messages=asked, stream=True, **options)
waited = asyncio.run(litellm.acompletion(messages=asked, **options))
text = litellm.text_completion(
    prompt="hello", max_tokens=40, **options | {"model": "text-completion-openai/tiny"}
)
print(
    json.dumps(
        {
            "whole": whole.choices[0].message.content,
            "parts": "".join(part.choices[0].delta.content or "" for part in stream),
            "waited": waited.choices[0].message.content,
            "text": text.choices[0].text,
            "errors": [error(model="openai/nobody"), error(api_key="wrong"), error(temperature=99)],
        }
    )
)
