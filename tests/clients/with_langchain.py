"""LangChain's ChatOpenAI: whole, streamed, in a batch, with tools, with a form."""

from __future__ import annotations

import json
import sys

from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI

address, key, what = sys.argv[1:]
model = ChatOpenAI(
    base_url=address, api_key=key, model="tiny", max_retries=0, temperature=0, stream_usage=True
)
asked = [HumanMessage("hello")]
if what == "tools":

    def weather(city: str) -> str:
        """The weather of a city."""
        return city

    got = model.bind_tools([weather]).invoke(asked)
    print(json.dumps([[call["name"], call["args"]] for call in got.tool_calls]))
elif what == "form":
    schema = {
        "title": "river",
        "type": "object",
        "properties": {"long": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["long"],
        "additionalProperties": False,
    }
    print(json.dumps(model.with_structured_output(schema, method="json_schema").invoke(asked)))
else:
    whole = model.invoke(asked)
    parts = list(model.stream(asked))
    batch = model.batch([asked, asked])
    print(
        json.dumps(
            {
                "whole": whole.content,
                "parts": "".join(part.content for part in parts),
                "batch": [one.content for one in batch],
                "tokens": [
                    whole.usage_metadata["output_tokens"],
                    sum(part.usage_metadata["output_tokens"] for part in parts if part.usage_metadata),
                ],
            }
        )
    )
