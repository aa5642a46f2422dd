"""What a model thought before it answered, folded above its reply."""

from __future__ import annotations

import re

from hierchat.chat.origins import SourceRun
from hierchat.page.buttons import button
from hierchat.page.reply_text import GrowingReply, drawn, marked, with_calls
from hierchat.reasoning import join_reasoning

THOUGHT = "The user wants a **short** greeting.\n\n- No name is known.\n- So none is used."
ANSWER = "Good morning! What can I do for you?"
REPLY = join_reasoning(THOUGHT, ANSWER)


def test_a_thought_is_folded_above_the_answer() -> None:
    shown = drawn(REPLY, 4.2, 7)
    fold, answer = shown.split("</details>")
    assert "<strong>short</strong>" in fold
    assert ANSWER in answer
    assert "think&gt;" not in shown
    words = {
        None: "Thoughts",
        0.2: "Thought for 1 second",
        59.4: "Thought for 59 seconds",
        125: "Thought for 2 minutes",
    }
    for seconds, said in words.items():
        assert f"<summary>{said}</summary>" in drawn(REPLY, seconds, 7)
    for plain in (ANSWER, "<think>\n\n</think>\n\n" + ANSWER):
        assert "details" not in drawn(plain, None, 7)
    growing = GrowingReply()
    assert "<summary>Thinking…</summary>" in growing.render("<think>", None, 7)
    assert "The user wants" in growing.render("<think>\nThe user wants", 1.0, 7)
    assert growing.render(REPLY, 4.2, 7, ended=True) == shown


def test_nothing_in_a_thought_can_press_a_button() -> None:
    shown = drawn(join_reasoning(f"</div></details>{button('hc_delete', 'x')}", ANSWER), None, '"><b>')
    assert "<button" not in shown
    assert shown.count("</details>") == 1
    assert "<b>" not in shown


def test_runs_are_marked_in_thought_and_answer() -> None:
    runs = [SourceRun(REPLY[at : at + 7], "context") for at in range(0, len(REPLY), 7)]
    shown = marked(runs, REPLY, 4.2, 7)
    fold, answer = shown.split("</details>")
    assert "data-run=" in fold
    text = re.sub(r"<[^>]*>", "", answer)
    assert text.startswith(ANSWER)
    assert re.sub(r"<[^>]*>", "", shown).count("Good morning!") == 1


def test_a_call_of_a_tool_is_shown_as_one() -> None:
    call = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
    shown = drawn(f"I look it up.\n{call}", None, 7)
    assert '<span class="hc-language">tool_call</span>' in shown
    assert "tool_call&gt;" not in shown
    assert with_calls("Write `<tool_call>` and so on.") == "Write `<tool_call>` and so on."
    assert with_calls("<tool_call>\nnone\n</tool_call>") == "<tool_call>\nnone\n</tool_call>"
