"""A hierchat whose model is another hierchat's endpoint."""

from pathlib import Path

from hierchat.models.catalogue import OpenAI
from tests.api.scripted import Served, serving
from tests.chat.conftest import slot_over
from tests.testing.raw import ask_endpoint as ask


def test_the_words_are_those_of_the_other_one_and_what_needs_tokens_is_refused(
    tiny_served: Served, tmp_path: Path
) -> None:
    said = [{"role": "user", "content": "hello"}]
    asked = {"messages": said, "max_tokens": 8, "temperature": 1, "seed": 7}
    with serving(tmp_path, slot_over(OpenAI(url=tiny_served.base))) as served:
        answer = ask(served.address, "POST", "/v1/completions", {"prompt": "Once"})
        assert answer.status == 400
        assert answer.error["message"].startswith("far is computed by another server")
        near, far = (
            ask(one.address, "POST", "/v1/chat/completions", asked).json for one in (tiny_served, served)
        )
    assert far["usage"]["prompt_tokens"] == near["usage"]["prompt_tokens"]
    assert far["usage"]["completion_tokens"] == 8
    assert far["choices"] == near["choices"]  # the words that the other one writes
