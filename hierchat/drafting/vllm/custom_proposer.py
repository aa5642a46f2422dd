"""What vLLM asks for drafts: `--speculative-config` names HierchatProposer as "custom_class".

vLLM hands over no request ids, parameters or ends of requests: the worker class binds its model runner, which has them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hierchat
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.source import Source
from hierchat.drafting.vllm import drafter_settings
from hierchat.drafting.vllm.batch import Batch, RowCosts, TrackedReply
from hierchat.drafting.vllm.channel import ChannelRefusal, ChannelServer, Method, number, text
from hierchat.drafting.vllm.drafter_settings import asked
from hierchat.drafting.vllm.user_state import (
    UserState,
    UserStateFile,
    UserStateFileError,
    UserStates,
    read_corpus,
)

PROTOCOL = 1
"""Version of the channel's protocol."""
REMEMBERED = 1000
"""Ended replies whose figures are held."""
MOST_FORGOTTEN = 10_000
"""Replies in one request."""

_log = logging.getLogger("vllm.hierchat")


class HierchatProposer:
    """The drafter of one engine. Of several tensor parallel workers one drafts."""

    def __init__(self, vllm_config: Any) -> None:
        """Raises WrongVersion, DrafterSettingsError or UserStateFileError."""
        import vllm

        drafter_settings.require(vllm.__version__)
        parallel, model = vllm_config.parallel_config, vllm_config.model_config
        self._version = vllm.__version__
        self._most = vllm_config.speculative_config.num_speculative_tokens
        self._longest = model.max_model_len
        self._runner: Any = None
        self._lock = threading.Lock()
        """Held while replies are read or changed: the channel asks from other threads."""
        self._replies: dict[str, TrackedReply] = {}  # by vLLM's id of the request
        self._remembered: OrderedDict[tuple[str, str], TrackedReply] = OrderedDict()
        self.channel: ChannelServer | None = None
        self._drafts = parallel.rank == parallel.world_size - parallel.tensor_parallel_size
        if not self._drafts:
            return
        self._settings = drafter_settings.read(os.environ, model.model, parallel.data_parallel_index)
        self._corpora = [read_corpus(folder, model.get_vocab_size()) for folder in self._settings.statistics]
        widest = vllm_config.scheduler_config.max_num_seqs * (1 + self._most)
        self._costs = RowCosts(widest)
        self._nobody = UserState("")
        """Without a history; how often drafts are right is learned for all such requests."""
        self._batch = Batch(self._costs, self._most, model.get_vocab_size())
        drafter = Drafter([Source.of([[1, 2, 3, 1, 2], [2, 3]])])  # compiles what drafting needs
        drafter.begin([1, 2, 3, 1, 2])
        drafter.propose()
        drafter.learn([3, 1])
        self._users = UserStates(
            UserStateFile(self._settings.file), self._settings.model, self._settings.most_tokens
        )
        if self._settings.port is not None:
            methods: dict[str, Method] = {
                "hello": self._hello,
                "reply": self._figures_of,
                "forget": self._forget,
                "figures": self._figures,
            }
            self.channel = ChannelServer(methods, self._settings.token, self._settings.port)
        _log.info("hierchat drafts: up to %d tokens a step, books in %s", self._most, self._settings.file)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load nothing: vLLM calls it of every proposer."""

    def bind(self, runner: Any) -> None:
        """Take the worker's model runner, which knows the requests."""
        self._runner = runner

    def close(self) -> None:
        """Write what is to be written; draft and listen no longer."""
        if self._drafts:
            self._drafts = False
            if self.channel:
                self.channel.close()
            self._users.close()

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: NDArray[np.integer[Any]],
        token_ids_cpu: NDArray[np.integer[Any]],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Draft a chain for each row. `sampled_token_ids`: what the forward brought to each row, nothing where a
        prompt is still being read. `token_ids_cpu` [rows, positions] holds `num_tokens_no_spec` [rows] tokens of each,
        what it brought included."""
        if not self._drafts:
            return [[] for _ in sampled_token_ids]
        if self._runner is None:
            raise RuntimeError(
                "hierchat's drafter was not told whose requests these are. Start vLLM with --worker-cls "
                "hierchat.drafting.vllm.worker.GPUWorker, on CPUs with worker.CPUWorker."
            )
        with self._lock:
            try:
                return self._propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
            except Exception:  # drafts are no reason for an engine to end
                _log.exception(
                    "hierchat's drafter failed. The replies that are being written go on as new ones."
                )
                for key in list(self._replies):
                    self._end(key)
                return [[] for _ in sampled_token_ids]

    def _propose(
        self,
        sampled: list[list[int]],
        lengths: NDArray[np.integer[Any]],
        tokens: NDArray[np.integer[Any]],
    ) -> list[list[int]]:
        began = time.perf_counter()
        keys = self._runner.input_batch.req_ids[: len(sampled)]
        known = [self._replies.get(key) if new else None for key, new in zip(keys, sampled, strict=True)]
        forward_ms = self._batch.ended(known, sum(map(len, sampled)))
        draft_ms, together = self._batch.draft_ms, self._batch.together
        going: dict[int, TrackedReply] = {}
        for row, (key, new, reply) in enumerate(zip(keys, sampled, known, strict=True)):
            if not new:
                continue
            before = int(lengths[row]) - len(new)
            if reply is None or reply.length > before:
                reply = self._begin(key, tokens[row, :before])
                reply.take(new, 0.0, 0.0, 1)
            else:
                reply.catch_up(tokens[row, reply.length : before].tolist())
                reply.take(new, draft_ms, forward_ms, together)
            if reply.state == "ended":
                self._end(key)
            else:
                going[row] = reply
        self._end_those_gone()
        drafts: list[list[int]] = [[] for _ in sampled]
        for row, draft in zip(going, self._batch.propose(list(going.values()), began), strict=True):
            drafts[row] = list(draft.tokens)
        return drafts

    def _begin(self, key: str, prompt: NDArray[np.integer[Any]]) -> TrackedReply:
        what = asked(key, self._runner.requests[key].sampling_params)
        user = self._users.begin(what.user) if what.user else self._nobody
        texts = self._corpora if what.texts else ()
        reply = TrackedReply(
            what, user, Drafter([user.history, *texts], user.acceptance), prompt.tolist(), self._longest
        )
        self._replies[key] = reply
        self._remembered[what.user, what.reply] = reply
        self._remembered.move_to_end((what.user, what.reply))
        for name in list(self._remembered)[: max(len(self._remembered) - REMEMBERED, 0)]:
            if self._remembered[name].state in ("ended", "aborted"):
                del self._remembered[name]
        return reply

    def _end_those_gone(self) -> None:
        """End replies that vLLM's runner holds no longer: they were aborted, since a reply that ends by itself is known
        by its last token."""
        held = self._runner.requests if self._runner is not None else ()
        for key in [key for key in self._replies if key not in held]:
            self._end(key)

    def _end(self, key: str) -> None:
        reply = self._replies.pop(key)
        what = reply.asked
        if reply.state == "ended" and what.learn:
            self._users.keep(reply.user, what.reply, reply.text)
        elif reply.state == "writing":
            reply.state = "aborted"
        elif reply.state == "forgotten":
            self._remembered.pop((what.user, what.reply), None)
        if what.user:
            self._users.end(reply.user)

    def _hello(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        return {
            "protocol": PROTOCOL,
            "hierchat": hierchat.__version__,
            "vllm": self._version,
            "model": self._settings.model,
            "most_drafts": self._most,
            "learns": not self._users.trouble,
        }

    def _figures_of(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        user, name, first = text(asked, "user", empty=True), text(asked, "reply"), number(asked, "from")
        with self._lock:
            self._end_those_gone()
            if (reply := self._remembered.get((user, name))) is None:
                raise ChannelRefusal("unknown_reply", "Nothing is known of this reply, or no longer.")
            return reply.to_json(first)

    def _forget(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        user, replies = text(asked, "user"), asked.get("replies")
        if asked.get("all") is True and replies is None:
            pass
        elif (
            not isinstance(replies, list)
            or len(replies) > MOST_FORGOTTEN
            or not all(isinstance(name, str) for name in replies)
        ):
            raise ChannelRefusal(
                "bad_request", f'Give "replies", a list of up to {MOST_FORGOTTEN} names, or "all": true.'
            )
        wanted = None if replies is None else set(replies)
        with self._lock:
            self._end_those_gone()
            mine = {name for owner, name in self._remembered if owner == user}
            names = mine if wanted is None else mine & wanted
            for name in names:
                if self._remembered[user, name] in self._replies.values():
                    self._remembered[user, name].state = "forgotten"
                else:
                    del self._remembered[user, name]
        try:
            return {"forgotten": len(names | self._users.forget(user, replies))}
        except UserStateFileError as error:
            raise ChannelRefusal("storage", str(error)) from error

    def _figures(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            replies, tokens = self._users.held()
        except UserStateFileError as error:
            raise ChannelRefusal("storage", str(error)) from error
        with self._lock:
            return {
                "users": len(self._users),
                "writing": len(self._replies),
                "replies": replies,
                "tokens": tokens,
                "step_ms": [round(ms, 3) for ms in self._costs.step_ms(0)],
                "propose_ms": round(self._batch.mean_ms, 3),
            }
