"""Anthropic's own client: whole, streamed, with tools."""

from __future__ import annotations

import json
import sys

import anthropic

address, key, what = sys.argv[1:]
client = anthropic.Anthropic(base_url=address.removesuffix("/v1"), api_key=key, max_retries=0)
asked = {"model": "tiny", "max_tokens": 200, "messages": [{"role": "user", "content": "hello"}]}
if what == "tools":
    tool = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
    with client.messages.stream(tools=[tool], **asked) as stream:
        got = stream.get_final_message()
    print(json.dumps([[block.name, block.input] for block in got.content if block.type == "tool_use"]))
else:
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        parts = "".join(stream.text_stream)
    errors = []
    for wrong in ({"model": "nobody"}, {"extra_body": {"temperature": 99}}):
        try:
            client.messages.create(**asked | wrong)
        except anthropic.APIStatusError as raised:
            errors.append(type(raised).__name__)
    print(json.dumps({"whole": whole.content[0].text, "parts": parts, "errors": errors}))
