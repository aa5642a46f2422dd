import pytest


@pytest.fixture(autouse=True)
def _no_titles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierchat.chat.titles.IDLE_SECONDS", float("inf"))
