"""Files of runs as a page, plots and Markdown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.decode import Measured
from benchmarks.report import DOCUMENT, draw_document

from .test_summary import row, turn

pytest.importorskip("matplotlib")


def run_file(path: Path, kind: str, width: int | None = None, days: bool = False) -> Path:
    rows = [
        row(
            number,
            group,
            number if days else None,
            vanilla=[turn([1, 2, 3, 4], 4.0, 4, sources={"target": 4})],
            hierchat=[turn([1, 2, 3, 4], 2.0 + number, 2, sources={"target": 2, "context": 2})],
            llama_cpp=[turn([1, 2], 1.0)],
        )
        for number, group in enumerate(("qa", "<rag>"))
    ]
    settings = {"kind": kind, "file": "q.jsonl", "width": width}
    result = Measured(path, {"machine": {"cores": 2}, "model": "tiny", "settings": settings}, [], rows)
    result.names = ["vanilla", "hierchat", "llama.cpp"]
    result.absent["dejavuu"] = "needs Python 3.13"
    result.write()
    return path


def report(*files: Path, out: Path) -> int:
    return main(["report", *map(str, files), "--out", str(out)])


def test_page_plots_and_markdown(tmp_path: Path) -> None:
    forward: dict[str, Any] = {"contexts": {"300": {"1": 5.0, "8": 11.0}}}
    (tmp_path / "forward.json").write_text(json.dumps(forward))
    files = [
        run_file(tmp_path / "cold.json", "decode", 6),
        run_file(tmp_path / "wide.json", "decode", 24),
        run_file(tmp_path / "log.json", "log", days=True),
        tmp_path / "forward.json",
    ]
    out = tmp_path / "out"
    assert report(*files, out=out) == 0
    pictures = {file.name for file in out.glob("*.png")}
    for name in ("cold-groups", "cold-sources", "log-days", "forward-latency", "widths-0"):
        for theme in ("light", "dark"):
            assert (out / f"{name}-{theme}.png").read_bytes().startswith(b"\x89PNG")
            assert f"{name}-{theme}.png" in pictures
    page, text = (out / "report.html").read_text(), (out / "report.md").read_text()
    assert page.count("data:image/png;base64,") == len(pictures)
    assert "http" not in page.replace("http-equiv", "")  # nothing is fetched
    assert "&lt;rag&gt;" in page
    assert "dejavuu is absent: needs Python 3.13" in text
    assert "| hierchat | 1.6 | 1.60x |" in text
    assert "| hierchat | 300 | 5.0 | 11.0 |" in text


@pytest.mark.parametrize("content", ["", "[]", '{"sizes": []}'])
def test_what_is_no_run(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "odd.json").write_text(content)
    assert report(tmp_path / "odd.json", out=tmp_path / "out") == 2
    assert "odd.json" in capsys.readouterr().err


def test_the_document_is_what_the_results_draw() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == draw_document(), "run: python -m benchmarks report"
