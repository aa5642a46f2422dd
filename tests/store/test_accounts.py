"""Accounts: who may log in, and who the owner is."""

from __future__ import annotations

from pathlib import Path

import pytest

from hierchat.store import LOCAL_USER, Store, StoreError


def test_the_first_account_is_the_owner_and_others_are_where_that_is_said(store: Store) -> None:
    assert store.accounts() == []
    assert store.add_account("Ann", "hash a").owner
    assert not store.add_account("ben", "hash b").owner
    assert store.add_account("cid", "hash c", owner=True).owner
    assert [one.name for one in store.accounts()] == ["Ann", "ben", "cid"]
    assert store.account("ANN") == store.accounts()[0]
    assert store.account("dan") is None
    for name in ("ann", "Ann"):
        with pytest.raises(StoreError, match="There is an account 'Ann' already"):
            store.add_account(name, "hash")
    users = {name: store.ensure_user(name) for name in ("Ann", "ann", "ben", "cid", LOCAL_USER, "key:1")}
    assert [name for name, user in users.items() if store.is_owner(user)] == ["Ann", "cid", LOCAL_USER]
    assert not store.is_owner(max(users.values()) + 1)


def test_an_account_for_the_page_without_a_login_is_an_owner_s(store: Store) -> None:
    store.add_account("ann", "hash")
    assert store.add_account(LOCAL_USER, "hash").owner


def test_another_password(store: Store) -> None:
    before = store.add_account("ann", "hash")
    assert store.set_password("Ann", "other").password == "other"
    assert store.account("ann") != before
    with pytest.raises(StoreError, match="There is no account 'ben'"):
        store.set_password("ben", "hash")


def test_nobody_is_left_without_an_owner(store: Store) -> None:
    store.add_account("ann", "hash")
    store.add_account("ben", "hash")
    with pytest.raises(StoreError, match="ann is the only owner"):
        store.remove_account("ann")
    assert store.remove_account("BEN").name == "ben"
    store.remove_account("ann")
    assert store.accounts() == []
    with pytest.raises(StoreError, match="There is no account 'ann'"):
        store.remove_account("ann")


def test_an_account_stays_when_its_user_forgets_everything(store: Store, path: Path) -> None:
    store.add_account("ann", "hash")
    user = store.ensure_user("ann")
    store.forget_user(user)
    assert store.account("ann")
    assert store.is_owner(store.ensure_user("ann"))
    store.close()
    with Store.open(path) as again:
        assert again.account("ann")
