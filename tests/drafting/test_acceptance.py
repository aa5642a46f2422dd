"""What was learned of the sources: kept apart from what was fitted, and stored."""

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.drafting import acceptance as module
from hierchat.drafting.acceptance import SHAPES, Acceptance, fitted
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.source import Source
from tests.drafting.databases import damaged

SIZE = sum(part.size for part in (fitted().score, fitted().none, Acceptance().curve, Acceptance().matches))


def taught(lessons: int = 30) -> Acceptance:
    acceptance = Acceptance()
    drafter = Drafter([Source.of([[1, 2, 3, 4]])], acceptance)
    for lesson in range(lessons):
        drafter.begin([1, 2, 9, 1, 2])
        drafter.propose()
        drafter.observe([3, 4] if lesson % 3 else [9])
    return acceptance


def test_lessons_change_what_learns_and_nothing_else() -> None:
    before = {name: getattr(fitted(), name).copy() for name in SHAPES}
    acceptance = taught()
    assert acceptance.prior is fitted()
    for name, shape in SHAPES.items():
        assert before[name].shape == shape
        np.testing.assert_array_equal(getattr(fitted(), name), before[name])
        same = np.array_equal(getattr(acceptance.model, name), before[name])
        assert same == (name not in ("score", "none"))
    assert np.isfinite(acceptance.model.score).all()


def test_it_comes_back_from_bytes() -> None:
    learned = taught()
    again = Acceptance.from_bytes(learned.to_bytes())
    np.testing.assert_allclose(again.model.score, learned.model.score, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(again.model.none, learned.model.none, rtol=1e-5, atol=1e-7)
    for name in ("curve", "matches"):
        np.testing.assert_array_equal(getattr(again, name), getattr(learned, name))
        assert getattr(learned, name).any()
    assert Acceptance.from_bytes(again.to_bytes()).to_bytes() == again.to_bytes()
    assert not Acceptance.from_bytes(Acceptance().to_bytes()).curve.any()


@settings(max_examples=60)
@given(data=st.data())
def test_damage_is_found(data: st.DataObject) -> None:
    with pytest.raises(ValueError, match=r"version|damaged"):
        Acceptance.from_bytes(damaged(data, taught(3).to_bytes()))


def test_numbers_that_cannot_be_and_those_on_top_of_another_fit_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    header, stored = module._HEADER, Acceptance().to_bytes()
    for learned in (np.zeros(3), np.full(SIZE, np.nan)):
        payload = zlib.compress(learned.astype("<f8").tobytes())
        with pytest.raises(ValueError, match="damaged"):
            Acceptance.from_bytes(header.pack(*header.unpack_from(stored)[:3], zlib.crc32(payload)) + payload)
    monkeypatch.setattr(module, "_fingerprint", lambda: 1)
    with pytest.raises(ValueError, match="version"):
        Acceptance.from_bytes(stored)


def test_the_likeliest_candidates_are_counted_by_what_matched() -> None:
    acceptance = Acceptance()
    drafter = Drafter((), acceptance)
    for following in (9, 9, 8):  # behind 1 2 3 there was a 9
        drafter.begin([1, 2, 3, 9, 5, 1, 2, 3])
        drafter.propose()
        drafter.observe([following])
    found = {length: tuple(row) for length, row in enumerate(acceptance.matches.sum(0)) if row.any()}
    assert found == {3: (3, 2)}
