"""What is released is pinned and listed."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.makers import release
from hierchat import __version__


def pins() -> dict[str, tuple[str, int]]:
    """Name -> version and number of hashes in the lock."""
    found, name = dict[str, tuple[str, int]](), ""
    for line in release.LOCK.read_text().splitlines():
        if pin := re.match(r"([\w.-]+)==([^\s;\\]+)", line):
            name = pin[1]
            found[name] = (pin[2], 0)
        elif re.fullmatch(r" +--hash=sha256:[0-9a-f]{64}( \\)?", line):
            found[name] = (found[name][0], found[name][1] + 1)
        else:
            assert line.startswith("#"), line
    return found


def test_the_lock_has_a_hash_of_all_that_an_install_needs() -> None:
    project = tomllib.loads((release.ROOT / "pyproject.toml").read_text())["project"]
    found = pins()
    for wanted in map(Requirement, project["dependencies"]):
        version, _ = found[canonicalize_name(wanted.name)]
        assert wanted.specifier.contains(version), wanted
    assert len(found) > 2 * len(project["dependencies"])  # what these need in their turn
    assert all(hashes for _, hashes in found.values())


def test_a_version_without_a_dated_entry_is_not_released() -> None:
    release.changelog(f"# Changelog\n\n## {__version__} (2026-11-28)\n")
    for text in (f"## {__version__} (unreleased)\n", "## 0.0.1 (2026-11-28)\n", "nothing\n"):
        with pytest.raises(release.NotReady):
            release.changelog(text)
