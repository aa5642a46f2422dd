"""YAML that remembers where each value stands, so that errors can name the line."""

from pathlib import Path
from typing import Any

import yaml

from hierchat.models.errors import CatalogueError

MOST_BYTES, MOST_VALUES, DEEPEST = 1 << 19, 50_000, 50
"""Of a file that says which models there are: as long as it may be, values with those that aliases repeat, and values
inside each other."""
Where = tuple[str | int, ...]
"""The way to a value: keys and list positions from the top."""


class _Loader(yaml.SafeLoader):
    """It calls itself once for each level, of which there may be thousands."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self._depth >= DEEPEST:
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(
                problem=f"brackets or lists inside each other, more than {DEEPEST} deep", problem_mark=mark
            )
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


class Lined:
    """A YAML file's plain data, and the line (from 1) of each key in it.

    Raises CatalogueError for a file that cannot be read, is not YAML, has the same key twice, or is made to take all
    time and memory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[Where, int] = {(): 1}
        self._values = 0
        try:
            if (size := path.stat().st_size) > MOST_BYTES:
                raise CatalogueError(
                    f"{path}:1: the file has {size:,} bytes; {MOST_BYTES:,} are read at most. Keep only what it adds."
                )
            self._loader = _Loader(path.read_text(encoding="utf-8"))
            node = self._loader.get_single_node()
            self.data: Any = {} if node is None else self._plain(node, ())
        except OSError as error:
            raise CatalogueError(
                f"{path} cannot be read ({error.strerror}). It must be a file of text: mend it or move it away."
            ) from error
        except UnicodeDecodeError as error:
            raise CatalogueError(f"{path} is no text in UTF-8. Mend it or move it away.") from error
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise CatalogueError(f"{path}:{line}: not YAML: {error.problem}") from error
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise CatalogueError(f"{path}: not YAML: {error}") from error

    def _plain(self, node: yaml.Node, where: Where) -> Any:
        self._values += 1
        if self._values > MOST_VALUES or len(where) > DEEPEST:
            raise CatalogueError(
                f"{self.path}:{self.find(where[:2])[1]}: with what its aliases (*) repeat, the file has more than "
                f"{MOST_VALUES:,} values. Take these aliases out."
            )
        if isinstance(node, yaml.SequenceNode):
            return [self._item(child, (*where, i), child) for i, child in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            return self._loader.construct_object(node)
        plain: dict[Any, Any] = {}
        for key_node, child in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise CatalogueError(f"{self.path}:{line}: a key must be a plain word")
            key = self._loader.construct_object(key_node)
            if key in plain:
                first = self.lines[(*where, key)]
                raise CatalogueError(f"{self.path}:{line}: {key!r} stands here again, first on line {first}")
            plain[key] = self._item(child, (*where, key), key_node)
        return plain

    def _item(self, node: yaml.Node, where: Where, mark: yaml.Node) -> Any:
        self.lines[where] = mark.start_mark.line + 1
        return self._plain(node, where)

    def find(self, where: Where) -> tuple[int, int]:
        """(How many steps of `where` this file has, the line of the last of them)."""
        depth = next(n for n in range(len(where), -1, -1) if where[:n] in self.lines)
        return depth, self.lines[where[:depth]]
