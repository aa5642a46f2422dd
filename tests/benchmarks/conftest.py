from __future__ import annotations

from tests.checks.conftest import _one_thread, tiny_in_the_catalogue  # noqa: F401 (fixtures)
