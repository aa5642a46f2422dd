"""State machines: steps drawn by hypothesis, each checked against a simple model. A failure is shrunk to its fewest
steps and printed as code."""

import random
from typing import Any

import hypothesis
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test

STEPS = 50
"""Of one example, at most."""


class Machine(RuleBasedStateMachine):
    """Counts its steps over all examples of a run."""

    examples = 20
    """Of one seed: the first ones are the simplest."""
    steps = 0

    @invariant()
    def counted(self) -> None:
        type(self).steps += 1

    @classmethod
    def run(cls, dice: random.Random, folder: Any = None) -> int:
        """Try some examples; return how many steps they had. Raises what a step or a check raises."""
        cls.steps = 0
        how = hypothesis.settings(
            max_examples=cls.examples,
            stateful_step_count=STEPS,
            database=None,
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        run_state_machine_as_test(hypothesis.seed(dice.randrange(2**32))(cls), settings=how)  # type: ignore[no-untyped-call]
        return cls.steps


def one_of(things: Any, pick: int) -> Any:
    """Return one of these, whichever number was drawn."""
    listed = list(things)
    return listed[pick % len(listed)]
