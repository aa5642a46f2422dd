"""vLLM with our drafter: what it tells of forwards, and what it is told."""

from collections import Counter
from collections.abc import Iterator

import pytest

from hierchat.config import GenerationSettings
from hierchat.engine.engine import GenerationRequest, Step
from hierchat.engine.remote import drafted
from hierchat.engine.remote.drafted import DraftedEngine, DrafterChannel, DrafterError
from hierchat.engine.remote.openai_client import OpenAIClient
from hierchat.engine.remote.openai_engine import RemoteEngine, TextTokens
from hierchat.models.catalogue import OpenAI
from tests.engine.remote.drafter import TOKEN, Drafter, step
from tests.engine.remote.drafter import serving as drafting
from tests.testing.openai_server import Script, serving


@pytest.fixture
def script() -> Script:
    models = [{"id": "big", "owned_by": "vllm", "max_model_len": 512}]
    return Script(models=models, counts=True, usage={"prompt_tokens": 7, "completion_tokens": 6})


@pytest.fixture
def drafter() -> Drafter:
    return Drafter()


@pytest.fixture
def engine(script: Script, drafter: Drafter) -> Iterator[DraftedEngine]:
    with serving(script) as url, drafting(drafter) as port:
        server = OpenAIClient(OpenAI(url=url))
        channel = DrafterChannel(port, TOKEN)
        yield DraftedEngine(server, server.model(None), 512, channel)
        channel.close()


def steps(engine: RemoteEngine, user: int | None = None) -> tuple[list[Step], str]:
    prompt = TextTokens().apply_chat_template([{"role": "user", "content": "Hello?"}])["input_ids"]
    made = list(engine.generate(GenerationRequest(prompt, GenerationSettings(), user=user)))
    return made, "".join(step.text or "" for step in made)


def counted(made: list[Step]) -> Counter[str]:
    return Counter(source for step in made for source in step.sources)


def test_steps_are_those_of_the_drafter_and_the_text_is_the_servers(engine: DraftedEngine) -> None:
    made, text = steps(engine.telling("ann", "m1", drafts=True))
    assert text == "Hello there."
    written = [step for step in made if step.tokens]
    assert [step.tokens for step in written] == [(11,), (12, 13, 14), (15, 16)]
    assert counted(made) == {"target": 3, "history": 2, "context": 1}
    assert [dict(step.proposed) for step in written] == [{}, {"history": 3}, {"context": 1}]
    assert [step.width for step in written] == [1, 4, 2]
    assert made[-1].finish == "end"


def test_a_step_of_another_form_is_not_taken(engine: DraftedEngine, drafter: Drafter) -> None:
    drafter.steps = [step([11, 12], ["history", "target"]) | {"sources": []}]
    others, text = steps(engine)
    assert text == "Hello there."
    assert counted(others) == {"target": 6}


def test_what_vllm_is_told(engine: DraftedEngine, script: Script, drafter: Drafter) -> None:
    steps(engine.telling("ann", "m1", drafts=True))
    steps(engine.telling("", "", drafts=False), user=3)
    named, unnamed = script.asked
    assert named["vllm_xargs"] == {"hierchat_user": "ann", "hierchat_reply": "m1"}
    assert named["cache_salt"] == "ann"
    assert unnamed["vllm_xargs"].keys() == {"hierchat_reply", "hierchat_drafts"}
    assert unnamed["vllm_xargs"]["hierchat_drafts"] == 0
    assert unnamed["cache_salt"].endswith("-3")
    assert {asked["user"] for asked in drafter.asked} == {"ann", ""}


def test_no_more_tokens_than_the_server_has_sent(
    engine: DraftedEngine, script: Script, drafter: Drafter
) -> None:
    script.counts, script.usage = False, {"prompt_tokens": 7, "completion_tokens": 5}
    made, _ = steps(engine)
    assert [token for step in made for token in step.tokens] == [11, 12, 13, 14, 15]


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "never hears of the end"])
def test_without_the_drafter_the_server_counts(
    engine: DraftedEngine, drafter: Drafter, gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafted, "ASK_SECONDS" if gone else "END_SECONDS", 0.0)
    drafter.hangs_up = gone
    drafter.steps = []
    made, text = steps(engine)
    assert text == "Hello there."
    assert counted(made) == {"target": 6}
    assert {step.width for step in made} == {0}


def test_it_forgets(engine: DraftedEngine, drafter: Drafter) -> None:
    engine.forget("ann", [f"m{n}" for n in range(1500)])
    assert [len(replies) for _, replies in drafter.forgot] == [1000, 500]
    drafter.refuses = True
    with pytest.raises(DrafterError, match=r"refused\. The token is wrong\."):
        engine.forget("ann", ["m1"])


def test_a_connection_that_was_closed_is_made_anew_and_another_protocol_is_said(drafter: Drafter) -> None:
    with drafting(drafter) as port:
        channel = DrafterChannel(port, TOKEN)
        channel.hello()
        drafter.hangs_up = True
        with pytest.raises(DrafterError, match=f"does not answer on port {port}"):
            channel.hello()
        drafter.hangs_up = False
        assert channel.hello()["learns"]
        drafter.protocol = 2
        with pytest.raises(DrafterError, match=r"is of hierchat 9\.9"):
            channel.hello()
        channel.close()
