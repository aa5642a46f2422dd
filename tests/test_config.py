import pytest
from pydantic import ValidationError

from hierchat import config
from hierchat.config import GenerationSettings


def test_defaults_are_greedy_and_survive_json() -> None:
    settings = GenerationSettings()
    assert settings.temperature == 0
    full = GenerationSettings(temperature=0.8, stop=("\n\n",), logit_bias={7: -2.5}, seed=2**63 - 1)
    assert GenerationSettings.model_validate_json(full.model_dump_json()) == full


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": float("nan")},
        {"repetition_penalty": 0},
        {"logit_bias": {1: float("nan")}},
        {"seed": 2**63},
        {"temprature": 1},
    ],
)
def test_out_of_bounds_is_refused(wrong: dict) -> None:
    with pytest.raises(ValidationError):
        GenerationSettings(**wrong)


@pytest.mark.parametrize(
    ("variable", "where"),
    [
        ("HIERCHAT_CACHE", config.cache_dir),
        ("HIERCHAT_DATA", config.data_dir),
        ("HIERCHAT_CONFIG", config.config_dir),
    ],
)
def test_directories_move(variable, where, monkeypatch, tmp_path) -> None:
    monkeypatch.delenv(variable, raising=False)
    assert "hierchat" in str(where())
    monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    assert where() == tmp_path / "elsewhere"
    assert not where().exists()
