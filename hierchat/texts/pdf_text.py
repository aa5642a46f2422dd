"""The text of a PDF, by a process of its own: whatever a hostile file does, its time and memory are bounded there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hierchat.texts import pdf_program


class PdfError(ValueError):
    """A PDF cannot be read. The text goes on behind its name, and says what to do."""


def text_of(raw: bytes, most: int, seconds: int) -> str:
    """Up to `most` characters of a PDF; in up to so many seconds. Raises PdfError."""
    package = str(Path(__file__).parents[2])
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    too_much = PdfError(
        f"could not be read in {seconds} seconds and in the memory set aside. Take fewer of its pages."
    )
    try:
        done = subprocess.run(
            [sys.executable, "-m", pdf_program.__name__, str(most), str(seconds)],
            input=raw,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise too_much from error
    if done.returncode == pdf_program.ENCRYPTED:
        raise PdfError("is protected by a password. Save a copy without one.")
    if done.returncode == pdf_program.TOO_MUCH or done.returncode < 0:  # killed at a bound
        raise too_much
    if done.returncode != 0:
        raise PdfError("is damaged, or no PDF that can be read. Save or print it to PDF once more.")
    text = done.stdout.decode("utf-8", "replace")
    if not text.strip():
        raise PdfError("holds pictures of pages, and no text. A program for text recognition can add it.")
    return text
