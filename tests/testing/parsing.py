"""Python files as trees, for tests that look at the code itself."""

import ast


def parse(source: str) -> ast.Module:
    """Parse a module.

    CPython 3.11 counts the depth of the tree in one place for all threads: where another one runs meanwhile,
    ast.parse may end in a SystemError about a recursion depth that does not match. The source is not at fault then."""
    for _ in range(20):
        try:
            return ast.parse(source)
        except SystemError:
            continue
    return ast.parse(source)
