"""Plans for families of models on GPUs."""

from __future__ import annotations

from benchmarks import simulate


def test_simulated_families() -> None:
    found = simulate.simulate()
    assert len(found["rows"]) == len(simulate.FAMILIES) * len(simulate.MACHINES) * len(simulate.SHIFTS)
    for row in found["rows"]:
        assert row["single_ms"] < row["vanilla_ms"]
        assert row["stack_gain"] >= 1.0 - 1e-9  # a single draft is one of the plans
        assert all(one["gain"] >= row["stack_gain"] - 1e-9 for one in row["databases"].values())
