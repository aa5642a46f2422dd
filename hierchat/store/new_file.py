"""Write a file whole or not at all, and never over another one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hierchat.store.errors import StoreError, translated


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Create a private file in the same folder, and rename it to `path` after the block.
    Raises StoreError if `path` exists, DatabaseUnwritable."""
    path = path.absolute()
    part = path.with_name(path.name + ".part")
    _require_free(path)
    with translated(path):
        part.unlink(missing_ok=True)  # of one that was killed
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        yield part
        _require_free(path)
        with translated(path):
            part.rename(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _require_free(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise StoreError(f"{path} already exists. Choose another name.")
