"""The program needs no network once its model is there, and sends nothing into one by itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.program import ROOT, START_SECONDS


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's network namespaces")
def test_a_day_of_use_sends_no_packet(tmp_path: Path) -> None:
    fetch = [sys.executable, "-m", "hierchat", "models", "get", "smollm2-135m"]
    subprocess.run(fetch, cwd=ROOT, check=True, capture_output=True, timeout=START_SECONDS)
    day = [sys.executable, "-m", "tests.end_to_end.offline_day", tmp_path]
    ran = subprocess.run(day, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    if not told["left"]:
        pytest.skip("this system lets no process leave its network")
    assert {"chat", "import", "export", "settings", "/v1/messages"} <= {*told["done"]}
    assert told["packets"] == 0
    assert told["seen"] == 1  # of the one packet that the test itself sent
