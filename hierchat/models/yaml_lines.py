"""YAML that remembers where each value stands, so that errors can name the line."""

from pathlib import Path
from typing import Any

import yaml

from hierchat.models.errors import CatalogueError

Where = tuple[str | int, ...]
"""The way to a value: keys and list positions from the top."""


class Lined:
    """A YAML file's plain data, and the line (from 1) of each key in it.

    Raises CatalogueError for a file that cannot be read, is not YAML, or has the same key twice.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[Where, int] = {(): 1}
        try:
            self._loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
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
