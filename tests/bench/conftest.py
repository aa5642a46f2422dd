from __future__ import annotations

from ..verify.conftest import _one_thread, tiny_in_the_catalogue  # noqa: F401 (fixtures)
