"""Datasets of the model hub: 'hub:owner/name', fetched into the cache."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from hierchat.corpus.errors import CorpusError
from hierchat.models.errors import MissingError
from hierchat.models.fetch.hub import fetch_hub
from hierchat.models.progress import Report

PREFIX = "hub:"
_LINES = ("*.jsonl", "*.jsonl.gz", "*.ndjson")


def fetch(source: str, report: Report) -> Path:
    """The folder with the dataset's JSON lines and, where pyarrow is there, Parquet files.

    Raises CorpusError or a ModelError.
    """
    repo = source.removeprefix(PREFIX)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise CorpusError(f"{source!r} is no dataset: write {PREFIX}owner/name.")
    parquet = importlib.util.find_spec("pyarrow") is not None
    try:
        return fetch_hub(repo, "main", report, (*_LINES, "*.parquet") if parquet else _LINES, "dataset")
    except MissingError as error:
        if parquet or " has none of " not in str(error):
            raise
        raise MissingError(f"{error} Datasets in Parquet need `pip install pyarrow`.") from error
