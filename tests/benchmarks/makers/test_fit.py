"""The fit computes what the kernels do."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.makers.fit import Batch, Net, SampledNet
from benchmarks.makers.lessons import lesson_of
from hierchat.config import GenerationSettings
from hierchat.drafting.acceptance import FITTED, warmth
from hierchat.drafting.growing.acceptance_model import score
from hierchat.drafting.growing.kernel_arrays import CANDIDATES, AcceptanceModel
from hierchat.drafting.source import Source
from tests.drafting.databases import World


def test_chances_are_those_of_the_kernel() -> None:
    generator = np.random.default_rng(0)
    world = World(
        [1, 2, 3], [Source.of([[1, 2, 3, int(token), 5] for token in generator.integers(4, 12, 40)])]
    )
    with np.load(FITTED) as file:
        net = Net.of(dict(file))
    sampled = SampledNet(net)
    with torch.no_grad():
        for part in (sampled.heat, sampled.swing, sampled.none_heat):
            part.normal_(0, 0.05)
    warm = warmth(GenerationSettings(temperature=0.8, top_p=0.9))
    places = world.along([])
    places.keys[0] = np.uint64(12345)
    arrays, added = net.arrays(), sampled.arrays()
    model = AcceptanceModel(**arrays)
    model = model._replace(
        score=model.score + warm @ added["heat"], none=model.none + warm @ added["none_heat"]
    )
    score(places, 0, model, warm @ added["swing"])
    parts = lesson_of(places, int(places.tokens[0, 0]), warm)
    lesson = Batch(*(torch.from_numpy(np.array([part])) for part in parts))
    found = torch.softmax(sampled(lesson._replace(inputs=lesson.inputs.float())), 1)[0].detach().numpy()
    count = int(places.candidates[0])
    assert 1 < count < CANDIDATES
    np.testing.assert_allclose(found[:count], places.chances[0, :count], rtol=0.01)
