"""The doubles behind the page are called as what they stand for."""

import inspect
from typing import Any

import pytest

from hierchat.chat.service import ChatService
from hierchat.runtime.model_manager import ModelManager
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.user_documents import UserDocuments
from tests.testing.fake_service import FakeService, FakeSlot
from tests.testing.fake_shelf import FakeModelManager
from tests.testing.fake_user_documents import FakeTexts


def taken(function: Any) -> list[tuple[Any, bool]]:
    """Kind of each argument, and whether it may be left out."""
    arguments = inspect.signature(function).parameters.values()
    return [(one.kind, one.default is not one.empty) for one in arguments]


@pytest.mark.parametrize(
    ("double", "original"),
    [
        (FakeModelManager, ModelManager),
        (FakeService, ChatService),
        (FakeSlot, ModelSlot),
        (FakeTexts, UserDocuments),
    ],
)
def test_a_double_takes_what_its_original_takes(double: type, original: type) -> None:
    own = {name for name, made in vars(double).items() if inspect.isfunction(made) and name[0] != "_"}
    both = own & set(dir(original))
    assert len(both) > 3
    for name in both:
        assert taken(getattr(double, name)) == taken(getattr(original, name)), name
