"""A hierchat whose model is another hierchat's endpoint."""

from __future__ import annotations

from pathlib import Path

import httpx

from hierchat.models.catalogue import Catalogue, EngineElsewhere, ModelEntry, OpenAI
from hierchat.runtime.model_slot import ModelSlot
from tests.api.scripted import Served, serving
from tests.testing.tiny_chat import settle


def test_the_words_are_those_of_the_other_one_and_what_needs_tokens_is_refused(
    tiny_served: Served, tmp_path: Path
) -> None:
    entry = ModelEntry(name="far", engine=EngineElsewhere(openai=OpenAI(url=tiny_served.base)))
    slot = ModelSlot(Catalogue(models={"far": entry}, default="far"))
    slot.start("far")
    with serving(tmp_path, settle(slot)) as served:
        for path, body in (
            ("v1/completions", {"prompt": "Once"}),
            ("tokenize", {"content": "Once"}),
            ("detokenize", {"tokens": [1]}),
        ):
            answer = httpx.post(served.address + path, json=body, timeout=300)
            assert answer.status_code == 400
            assert answer.json()["error"]["message"].startswith("far is computed by another server")
        asked = {
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 8,
            "temperature": 1,
            "seed": 7,
        }
        near, answer = (
            httpx.post(f"{base}/chat/completions", json=asked, timeout=300)
            for base in (tiny_served.base, served.base)
        )
        assert answer.json()["usage"]["prompt_tokens"] == near.json()["usage"]["prompt_tokens"]
        assert answer.json()["usage"]["completion_tokens"] == 8
        assert answer.json()["choices"] == near.json()["choices"]  # the words that the other one writes
