"""The text of a PDF from standard input to standard output. A program of its own (`CHARACTERS SECONDS`), with bounds
of memory and time, for a PDF may be made to exhaust both."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress

ENCRYPTED, BROKEN, TOO_MUCH = 3, 4, 5
"""What it exits with where there is no text."""
_MEMORY = 2**30


def main(most: int, seconds: int) -> int:
    """Up to `most` characters."""
    _bound(seconds)
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, FileNotDecryptedError

    try:
        reader = PdfReader(io.BytesIO(sys.stdin.buffer.read()))
        # Many files have no password for reading, only one for changing.
        if reader.is_encrypted and not reader.decrypt(""):
            return ENCRYPTED
        left = most
        for page in reader.pages:
            text = page.extract_text()[:left].rstrip() + "\n\n"
            sys.stdout.buffer.write(text.encode("utf-8", "replace"))
            left -= len(text)
            if left <= 0:
                break
    except (DependencyError, FileNotDecryptedError):
        return ENCRYPTED
    except MemoryError:
        return TOO_MUCH
    except Exception:  # the library raises whatever a broken file leads it to
        return BROKEN
    return 0


def _bound(seconds: int) -> None:
    with suppress(ImportError, ValueError, OSError):  # Windows has neither
        import resource

        os.nice(10)  # replies go first
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
