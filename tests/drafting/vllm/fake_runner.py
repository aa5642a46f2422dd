"""What a worker of vLLM 0.32 does around a proposer, without a model: rows, token ids, verification, ends of requests.

Recorded from vllm/v1/worker/gpu_model_runner.py (_bookkeeping_sync, propose_draft_token_ids) and the scheduler's
check_stop: rows keep their place until a request is gone, a finished request leaves `requests` with the next step, and
what the runner samples behind an end token is cut by the scheduler alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from hierchat.drafting.vllm.custom_proposer import HierchatProposer

END = 1
VOCABULARY = 500
LONGEST = 300

Target = Callable[[Sequence[int]], int]


def config(most: int = 8, rank: int = 0, world: int = 1, replica: int = 0, sequences: int = 8) -> Any:
    """The parts of a VllmConfig that are read."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=most),
        model_config=SimpleNamespace(model="tiny", max_model_len=LONGEST, get_vocab_size=lambda: VOCABULARY),
        scheduler_config=SimpleNamespace(max_num_seqs=sequences),
        parallel_config=SimpleNamespace(
            rank=rank, world_size=world, tensor_parallel_size=world, data_parallel_index=replica
        ),
    )


@dataclass
class Request:
    """As vLLM's CachedRequestState, and what its scheduler holds of it."""

    prompt: list[int]
    target: Target
    sampling_params: Any
    tokens: list[int] = field(default_factory=list)
    """As the scheduler has them: what a client gets."""
    drafts: list[int] = field(default_factory=list)
    unread: int = 0
    """Steps that the prompt takes beside the one that ends it."""
    finished: bool = False


class Engine:
    """A scheduler and a runner over one proposer; `forwards` and `rows` count what went through the target."""

    def __init__(self, proposer: HierchatProposer) -> None:
        self.proposer = proposer
        self.requests: dict[str, Request] = {}
        self.input_batch = SimpleNamespace(req_ids=[])
        self.everyone: dict[str, Request] = {}
        self.rows: list[int] = []
        self._made = 0
        proposer.bind(self)

    def ask(
        self, prompt: Sequence[int], target: Target, *, most: int = 80, pieces: int = 0, **extra: Any
    ) -> Request:
        """A request with these `vllm_xargs`; `pieces`: steps for the prompt beside the last."""
        parameters = SimpleNamespace(
            extra_args={f"hierchat_{name}": value for name, value in extra.items()} or None,
            stop_token_ids=[],
            eos_token_id=END,
            max_tokens=most,
        )
        self._made += 1
        request = Request(list(prompt), target, parameters, unread=pieces)
        self.requests[f"cmpl-{self._made}"] = self.everyone[f"cmpl-{self._made}"] = request
        return request

    def abort(self, request: Request) -> None:
        """The client hung up."""
        request.finished = True

    def step(self, *, drafting: bool = True) -> None:
        """One forward of all requests; without `drafting` vLLM does not ask the proposer, as near the end of a
        context."""
        self.requests = {key: one for key, one in self.requests.items() if not one.finished}
        self.input_batch.req_ids = list(self.requests)
        sampled: list[list[int]] = []
        held: list[list[int]] = []
        self.rows.append(sum(1 + len(one.drafts) for one in self.requests.values()))
        for request in self.requests.values():
            if request.unread:
                request.unread -= 1
                sampled.append([])
                held.append(request.prompt)
                continue
            new = verified(request)
            sampled.append(new)
            held.append([*request.prompt, *request.tokens, *new])
            self._schedule(request, new)
        if not self.requests:
            return
        tokens = np.zeros((len(held), LONGEST + 20), np.int32)
        for row, text in enumerate(held):
            tokens[row, : len(text)] = text
        lengths = np.array([len(text) for text in held], np.int32)
        drafts: list[list[int]] = [[] for _ in held]
        if drafting:
            drafts = self.proposer.propose(sampled, lengths, tokens, slot_mappings=None)
        for request, draft in zip(self.requests.values(), drafts, strict=True):
            request.drafts = draft

    def finish(self) -> None:
        """Until all have ended, and the runner knows."""
        while any(not one.finished for one in self.requests.values()):
            self.step()
        self.step()

    def _schedule(self, request: Request, new: Sequence[int]) -> None:
        for token in new:
            request.tokens.append(token)
            text = len(request.prompt) + len(request.tokens)
            if (
                token == request.sampling_params.eos_token_id
                or len(request.tokens) >= request.sampling_params.max_tokens
                or text >= LONGEST
            ):
                request.finished = True
                return


def verified(request: Request) -> list[int]:
    """What greedy verification of the drafts brings: those that the target would have chosen, and one of its own."""
    found: list[int] = []
    for draft in [*request.drafts, None]:
        found.append(request.target([*request.prompt, *request.tokens, *found]))
        if found[-1] != draft:
            break
    return found


def alone(prompt: Sequence[int], target: Target, most: int = 80) -> list[int]:
    """The reply that plain decoding writes."""
    text = list(prompt)
    while len(text) < LONGEST and len(text) - len(prompt) < most:
        text.append(target(text))
        if text[-1] == END:
            break
    return text[len(prompt) :]


def recites(text: Sequence[int]) -> Target:
    """A target that writes `text`, and END behind it. Where it stands follows from the last token: the tokens of `text`
    must differ, and none may end a prompt."""
    following = dict(zip(text, [*text[1:], END], strict=True))
    return lambda held: following.get(held[-1], text[0])
