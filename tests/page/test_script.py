"""The page's script: its parts share one scope."""

from __future__ import annotations

import re

from hierchat.page.buttons import script


def test_no_name_is_declared_by_two_parts() -> None:
    names = re.findall(r"^(?:const|let|class|(?:async )?function) (\w+)", script(), re.M)
    assert len(names) > 30
    assert sorted(set(names)) == sorted(names)
