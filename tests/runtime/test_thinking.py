"""Families that think: what their templates and marks tell, and what of a thought a later prompt holds."""

from __future__ import annotations

from typing import Any

import pytest

from hierchat.reasoning import join_reasoning, split_reasoning
from hierchat.runtime.prompt import PromptBuilder, PromptMessage
from hierchat.runtime.template import ThinkingFormat
from tests.testing.thinkers import DEEPSEEK, GEMMA4, GPT_OSS, GRANITE, KEEPS, QWEN3, thinker
from tests.testing.tiny_chat import END, tokenizer

REPLY = join_reasoning("The user asks.", "Thank you.")


def ids_of(made: Any, text: str) -> tuple[int, ...]:
    return tuple(made(text, add_special_tokens=False)["input_ids"])


def prompt(template: str, *said: PromptMessage, **more: Any) -> str:
    made = thinker(template)
    ids = PromptBuilder(made, 10_000).build(said, 10, {END}, **more).ids
    return made.decode(ids, skip_special_tokens=False)


def talk(template: str, text: str = REPLY) -> tuple[PromptMessage, ...]:
    """A question, a reply as the model wrote it, and another question."""
    made = thinker(template)
    return (
        PromptMessage("user", "one"),
        PromptMessage("assistant", text, (*ids_of(made, text), END)),
        PromptMessage("user", "two"),
    )


@pytest.mark.parametrize(
    ("template", "choices"),
    [
        (QWEN3, ("off", "on")),
        (GEMMA4, ("off", "on")),
        (GRANITE, ("off", "on")),
        (GPT_OSS, ("low", "medium", "high")),
        (DEEPSEEK, ()),
        (KEEPS, ()),
    ],
)
def test_what_can_be_chosen(template: str, choices: tuple[str, ...]) -> None:
    assert ThinkingFormat(thinker(template)).choices == choices


def test_what_was_chosen_reaches_the_template() -> None:
    asked = PromptMessage("user", "one")
    assert prompt(QWEN3, asked, reasoning="off").endswith("assistant\n<think>\n\n</think>\n\n")
    assert prompt(QWEN3, asked, reasoning="on") == prompt(QWEN3, asked)
    assert "Reasoning: high" in prompt(GPT_OSS, asked, reasoning="high")
    assert "Think first." in prompt(GRANITE, asked, reasoning="on")
    assert "Think first." not in prompt(GRANITE, asked)
    assert "<|think|>" in prompt(GEMMA4, asked, reasoning="on")


@pytest.mark.parametrize(
    ("template", "chosen", "given"),
    [
        (GPT_OSS, "off", {"reasoning_effort": "low"}),
        (GPT_OSS, "on", {"reasoning_effort": "medium"}),
        (QWEN3, "high", {"enable_thinking": True}),
        (QWEN3, "low", {"enable_thinking": False}),
        (KEEPS, "high", {}),
        (QWEN3, "", {}),
    ],
)
def test_the_nearest_is_taken(template: str, chosen: Any, given: dict[str, Any]) -> None:
    assert ThinkingFormat(thinker(template)).arguments(chosen) == given


@pytest.mark.parametrize("template", [QWEN3, DEEPSEEK, GPT_OSS, GEMMA4, GRANITE])
def test_later_prompts_hold_no_thought(template: str) -> None:
    said = prompt(template, *talk(template))
    assert "The user asks." not in said
    assert "Thank you." in said


def test_a_template_that_keeps_thoughts_keeps_the_tokens() -> None:
    made = thinker(KEEPS)
    letters = tuple(token for letter in "What" for token in ids_of(made, letter))
    tokens = (*ids_of(made, "<think>\n"), *letters, *ids_of(made, "</think>\n\nThank you."), END)
    said = [
        PromptMessage("user", "one"),
        PromptMessage("assistant", join_reasoning("What", "Thank you."), tokens),
        PromptMessage("user", "two"),
    ]
    ids = PromptBuilder(made, 10_000).build(said, 10, {END}).ids
    assert tokens in [tuple(ids[at : at + len(tokens)]) for at in range(len(ids))]


def test_gpt_oss_gets_its_own_marks_once() -> None:
    made = thinker(GPT_OSS)
    thought = "<|channel|>analysis<|message|>The user asks.<|end|>"
    written = f"{thought}<|start|>assistant<|channel|>final<|message|>Thank you.<|return|>"
    tokens = ids_of(made, written)
    text = ThinkingFormat(made).text(tokens)
    assert text == REPLY
    said = prompt(
        GPT_OSS,
        PromptMessage("user", "one"),
        PromptMessage("assistant", text, tokens),
        PromptMessage("user", "two"),
    )
    assert said.count("<|channel|>final<|message|>Thank you.<|end|>") == 1
    assert "analysis" not in said


def test_gpt_oss_calls_a_function() -> None:
    made = thinker(GPT_OSS)
    call = '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"at": 1}<|call|>'
    written = f"<|channel|>analysis<|message|>So.<|end|><|start|>assistant{call}"
    text = ThinkingFormat(made).text(ids_of(made, written))
    assert (
        split_reasoning(text).answer == '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
    )


@pytest.mark.parametrize("template", [QWEN3, GPT_OSS, GEMMA4])
def test_a_text_only_grows(template: str) -> None:
    made = thinker(template)
    written = {
        QWEN3: REPLY,
        GPT_OSS: "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>analysis<|message|>And so."
        "<|end|><|start|>assistant<|channel|>commentary to=functions.look<|message|>{}<|call|>",
        GEMMA4: "<|channel>thought\nThe user asks.<channel|>Thank you.<turn|>",
    }[template]
    tokens, thinking = ids_of(made, written), ThinkingFormat(made)
    before = ""
    for end in range(len(tokens) + 1):
        text = thinking.text(tokens[:end])
        assert text.startswith(before)
        before = text
    assert split_reasoning(before).thought


def test_a_prompt_that_opens_the_thought() -> None:
    made = thinker(DEEPSEEK)
    built = PromptBuilder(made, 10_000).build([PromptMessage("user", "one")], 10, {END})
    assert built.thinking
    assert ThinkingFormat(made).always_opened
    tokens = ids_of(made, "The user asks.\n</think>\n\nThank you.")
    assert ThinkingFormat(made).text(tokens, opened=True) == REPLY
    assert (
        not PromptBuilder(tokenizer(), 10_000).build([PromptMessage("user", "<think>")], 10, {END}).thinking
    )


def test_control_tokens_that_are_typed_into_a_thought_stay_text() -> None:
    typed = join_reasoning("<|im_end|>", "<|im_start|>Thank you.")
    made = thinker(QWEN3)
    ids = (
        PromptBuilder(made, 10_000)
        .build(
            [PromptMessage("user", "one"), PromptMessage("assistant", typed), PromptMessage("user", "?")], 10
        )
        .ids
    )
    assert ids.count(made.convert_tokens_to_ids("<|im_start|>")) == 4
