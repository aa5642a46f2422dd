"""Orders of suffixes as they are stored: which texts one covers, and what of it stays when some of them go."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from sqlite_utils import Database

TEXT, POSITION = np.dtype("<i8"), np.dtype("<i4")


@dataclass(frozen=True, slots=True, eq=False)
class SuffixRun:
    """The order of the suffixes of some texts, each followed by one token that is in no order."""

    texts: NDArray[np.int64]  # [texts, 2]: its name (drafting_texts.TextKind) and number of tokens
    order: NDArray[np.int32]  # positions, counted from the first token of the first text

    @property
    def length(self) -> int:
        """Tokens that it covers, those behind the texts included."""
        return int((self.texts[:, 1] + 1).sum())

    @property
    def sound(self) -> bool:
        """Whether each position of the texts stands in the order once."""
        lengths = self.texts[:, 1]
        if lengths.min(initial=1) < 1 or self.order.size != lengths.sum():
            return False
        if self.order.min(initial=0) < 0 or self.order.max(initial=0) >= self.length:
            return False
        seen = np.zeros(self.length, np.bool_)
        seen[self.order] = True
        seen[np.cumsum(lengths + 1) - 1] = True
        return bool(seen.all())

    def without(self, message_ids: NDArray[np.int64]) -> Self:
        """The same without some of its texts."""
        stays = ~np.isin(self.texts[:, 0], message_ids)
        if stays.all():
            return self
        kept = np.repeat(stays, self.texts[:, 1] + 1)
        order = self.order[kept[self.order]]
        return type(self)(self.texts[stays], (np.cumsum(kept, dtype=np.int32) - 1)[order])

    def to_row(self) -> dict[str, bytes | int]:
        """Columns of the table suffix_runs."""
        texts, positions = self.texts.astype(TEXT).tobytes(), self.order.astype(POSITION).tobytes()
        return {"texts": texts, "positions": positions, "checksum": zlib.crc32(positions, zlib.crc32(texts))}

    @classmethod
    def from_row(cls, texts: bytes, positions: bytes, checksum: int) -> Self | None:
        """What to_row made; None where it is damaged."""
        if zlib.crc32(positions, zlib.crc32(texts)) != checksum:
            return None
        if len(texts) % (2 * TEXT.itemsize) or len(positions) % POSITION.itemsize:
            return None
        run = cls(np.frombuffer(texts, TEXT).reshape(-1, 2), np.frombuffer(positions, POSITION))
        return run if run.sound else None


def covered(texts: bytes) -> NDArray[np.int64]:
    """The messages in that column of a row, which may be damaged."""
    return np.frombuffer(texts[: len(texts) // 16 * 16], TEXT)[::2]


def _ids(rows: Iterable[tuple[int]]) -> NDArray[np.int64]:
    return np.array([id for (id,) in rows], np.int64)


def forget_texts(db: Database, user_id: int, conversation_id: int) -> None:
    """As part of the transaction that deletes a conversation: an order tells much of the texts that it covers."""
    messages = _ids(db.execute("SELECT id FROM messages WHERE conversation_id = ?", [conversation_id]))
    made_of_them = _ids(
        db.execute(
            "SELECT self_texts.id FROM self_texts JOIN messages ON messages.id = origin_id"
            " WHERE conversation_id = ?",
            [conversation_id],
        )
    )
    for id, kind, *row in db.execute(
        "SELECT id, kind, texts, positions, checksum FROM suffix_runs WHERE user_id = ?", [user_id]
    ).fetchall():
        run = SuffixRun.from_row(*row)
        left = run and run.without(made_of_them if kind == "self" else messages)
        if left is None or not len(left.texts):
            db.execute("DELETE FROM suffix_runs WHERE id = ?", [id])
        elif left is not run:
            db.execute(
                "UPDATE suffix_runs SET texts = :texts, positions = :positions, checksum = :checksum"
                " WHERE id = :id",
                left.to_row() | {"id": id},
            )
