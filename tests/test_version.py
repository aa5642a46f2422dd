"""The version is written in one place, and is the one that the changelog begins with."""

from __future__ import annotations

import re
from pathlib import Path

import hierchat
from hierchat.checks.runs import machine

CHANGELOG = (Path(__file__).parents[1] / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_version_is_that_of_the_changelog() -> None:
    heading = re.search(r"^## (\S+)( \(unreleased\))?$", CHANGELOG, re.M)
    assert heading
    assert hierchat.__version__ == heading[1] + (".dev0" if heading[2] else "")
    assert machine()["hierchat"] == hierchat.__version__
