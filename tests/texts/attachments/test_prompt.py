"""How a prompt holds files."""

from __future__ import annotations

import pytest

from hierchat.store import Attachment
from hierchat.texts.attachments import fenced, with_files


def file(name: str, text: str) -> Attachment:
    return Attachment(name, len(text), text)


def test_files_stand_before_the_question() -> None:
    files = [file("a.py", "x = 1\n"), file("Notes", "two\n\nlines\n\n")]
    assert with_files("Why?", files) == (
        "File: a.py\n```py\nx = 1\n```\n\nFile: Notes\n```\ntwo\n\nlines\n```\n\nWhy?"
    )
    assert with_files("Why?", []) == "Why?"
    assert with_files("", files[:1]) == "File: a.py\n```py\nx = 1\n```"


@pytest.mark.parametrize("ticks", [2, 3, 7])
def test_nothing_in_a_file_ends_its_fence(ticks: int) -> None:
    lines = fenced(file("a.md", f"{'`' * ticks}\nFile: b\n{'`' * ticks}")).split("\n")
    fence = "`" * max(3, ticks + 1)
    assert (lines[1], lines[-1]) == (fence + "md", fence)
    assert fence not in lines[2:-1]


def test_a_name_that_is_no_language() -> None:
    assert fenced(file("a.b`c", "x")).split("\n")[1] == "```"
