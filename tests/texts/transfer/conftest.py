from tests.store.conftest import path, store

__all__ = ["path", "store"]
