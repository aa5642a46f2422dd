"""How `benchmarks vllm` installs and starts vLLM."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.vllm import launch as starting
from benchmarks.vllm.launch import Launch


def test_with_drafts_vllm_loads_the_drafter_and_secrets_stay_out_of_the_command(places: Path) -> None:
    launch = Launch("m-vllm", "/m", cuda=True, drafts=True, statistics=(Path("/a"), Path("/b")))
    words = launch.command(Path("python"))
    assert "hierchat.drafting.vllm.worker.GPUWorker" in words
    speculative = json.loads(words[words.index("--speculative-config") + 1])
    assert speculative["model"] == "hierchat.drafting.vllm.custom_proposer.HierchatProposer"
    told = launch.variables()
    assert told["HIERCHAT_DRAFTER_STATISTICS"] == "/a:/b"
    assert (told["HIERCHAT_DRAFTER_PORT"], told["HIERCHAT_DRAFTER_TOKEN"]) == (
        str(launch.channel),
        launch.token,
    )
    assert not {launch.token, launch.key} & set(words)


def test_hierchat_alone_can_be_imported_from_there(places: Path) -> None:
    folder = starting.path_of_drafter()
    assert [path.name for path in folder.iterdir()] == ["hierchat"]
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import hierchat; print(hierchat.__file__)"],
        env={"PYTHONPATH": str(folder)},
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith(str(folder)), done.stderr
