# ruff: noqa: RUF001
"""Accounts: who may log in, and who the owner is."""

from pathlib import Path

import pytest

from hierchat.store import LOCAL_USER, Store, StoreError


def test_the_first_account_is_the_owner_and_others_are_where_that_is_said(store: Store) -> None:
    assert store.accounts.all() == []
    assert store.accounts.add("Ann", "hash a").owner
    assert not store.accounts.add("ben", "hash b").owner
    assert store.accounts.add("cid", "hash c", owner=True).owner
    assert [one.name for one in store.accounts.all()] == ["Ann", "ben", "cid"]
    assert store.accounts.find("ANN") == store.accounts.all()[0]
    assert store.accounts.find("dan") is None
    for name in ("ann", "Ann"):
        with pytest.raises(StoreError, match="There is an account 'Ann' already"):
            store.accounts.add(name, "hash")
    users = {name: store.users.ensure(name) for name in ("Ann", "ann", "ben", "cid", LOCAL_USER, "key:1")}
    assert [name for name, user in users.items() if store.users.is_owner(user)] == ["Ann", "cid", LOCAL_USER]
    assert not store.users.is_owner(max(users.values()) + 1)


def test_accounts_get_another_password_and_go_but_for_the_only_owner(store: Store) -> None:
    before = store.accounts.add("ann", "hash")
    assert store.accounts.add(LOCAL_USER, "hash").owner  # of the page without a login
    store.accounts.remove(LOCAL_USER)
    store.accounts.add("ben", "hash")
    assert store.accounts.set_password("Ann", "other").password == "other"
    assert store.accounts.find("ann") != before
    with pytest.raises(StoreError, match="There is no account 'cid'"):
        store.accounts.set_password("cid", "hash")
    with pytest.raises(StoreError, match="ann is the only owner"):
        store.accounts.remove("ann")
    assert store.accounts.remove("BEN").name == "ben"
    store.accounts.remove("ann")
    assert store.accounts.all() == []
    with pytest.raises(StoreError, match="There is no account 'ann'"):
        store.accounts.remove("ann")


def test_an_account_stays_when_its_user_forgets_everything(store: Store, path: Path) -> None:
    store.accounts.add("ann", "hash")
    user = store.users.ensure("ann")
    store.users.forget(user)
    assert store.accounts.find("ann")
    assert store.users.is_owner(store.users.ensure("ann"))
    store.close()
    with Store.open(path) as again:
        assert again.accounts.find("ann")


def test_spellings_of_one_name_are_not_two_accounts(store: Store) -> None:
    for there, name in (
        ("ada", "ADA"),
        ("ada", "\uff41\uff44\uff41"),
        ("zo\u00eb", "zoe\u0308"),
        ("stra\u00dfe", "STRASSE"),
    ):
        store.accounts.add(there, "hash")
        with pytest.raises(StoreError, match="Take"):
            store.accounts.add(name, "hash")
        assert [one.name for one in store.accounts.all()] == [there]
        store.accounts.remove(there)


def test_accounts_of_earlier_versions_go_on_working(store: Store) -> None:
    """Those that look alike, too: each by its own name."""
    names = ["ada", "аdа", "Äda", "äda", "zoe\u0308"]
    with store.connection.write() as db:
        for name in names:
            db.execute("INSERT INTO accounts VALUES (?, 'hash', 0, 1)", [name])
    for name in names:
        assert store.accounts.find(name).name == name  # type: ignore[union-attr]
        assert store.accounts.set_password(name, f"hash of {name}").name == name
    assert [one.password for one in store.accounts.all()] == [f"hash of {name}" for name in names]
    assert store.accounts.find("ADA").name == "ada"  # type: ignore[union-attr]
    assert store.accounts.find("zoë").name == "zoe\u0308"  # type: ignore[union-attr]
    assert store.accounts.find("adа") is None
