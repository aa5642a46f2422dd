"""Draft for vLLM, and serve the side channel: `--speculative-config` names HierchatProposer as "custom_class"."""

from __future__ import annotations

import hmac
import json
import logging
import os
import socketserver
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import hierchat
from hierchat.drafting.draft_cost import RowCosts
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.source import Source
from hierchat.drafting.vllm import drafter_settings, user_state
from hierchat.drafting.vllm.batch import Batch, TrackedReply
from hierchat.drafting.vllm.drafter_settings import PREFIX, DrafterSettingsError, asked

PROTOCOL = 1
"""Version of the channel's protocol."""
REMEMBERED = 1000
"""Ended replies whose figures are held."""
MOST_FORGOTTEN = 10_000
"""Replies in one request."""

_log = logging.getLogger("vllm.hierchat")


LONGEST_LINE = 2**20
SILENT_SECONDS = 600.0
CONNECTIONS = 64
CLOSES_IN = 0.05
"""Seconds."""

Code = Literal["unauthorised", "bad_request", "unknown_reply", "storage"]
Method = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class ChannelRefusal(Exception):
    """A request on the side channel cannot be answered; the text is for who asked."""

    def __init__(self, code: Code, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class ChannelServer(socketserver.ThreadingTCPServer):
    """Serves the side channel on threads: one JSON object a line each way over loopback (docs/vllm.md)."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, methods: Mapping[str, Method], token: str, port: int) -> None:
        """Listen on `port`, 0: any. Raises DrafterSettingsError where the port is taken."""
        self.methods, self.token = methods, token.encode()
        self.free = threading.BoundedSemaphore(CONNECTIONS)
        try:
            super().__init__(("127.0.0.1", port), _Connection)
        except OSError as error:
            raise DrafterSettingsError(
                f"Nothing can listen on port {port} of 127.0.0.1 ({error.strerror}). Set {PREFIX}PORT to a free one."
            ) from error
        self.port: int = self.server_address[1]
        work = threading.Thread(
            target=self.serve_forever, args=(CLOSES_IN,), name="hierchat-channel", daemon=True
        )
        work.start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Close connections beyond CONNECTIONS."""
        return self.free.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()


class _Connection(socketserver.StreamRequestHandler):
    timeout = SILENT_SECONDS
    server: ChannelServer

    def handle(self) -> None:
        try:
            while line := self.rfile.readline(LONGEST_LINE + 1):
                answer = self._answer(line)
                self.wfile.write(json.dumps(answer).encode() + b"\n")
                if answer.get("error") == "unauthorised" or len(line) > LONGEST_LINE:
                    return
        except OSError:  # silent for too long, or gone
            return

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            return {"ok": True, **self._asked(line)}
        except ChannelRefusal as refusal:
            return {"ok": False, "error": refusal.code, "message": str(refusal)}
        except Exception:
            _log.exception("The channel could not answer.")
            return {"ok": False, "error": "bad_request", "message": "That failed. vLLM's log has the reason."}

    def _asked(self, line: bytes) -> Mapping[str, Any]:
        if len(line) > LONGEST_LINE:
            raise ChannelRefusal("bad_request", f"A request has {LONGEST_LINE:,} bytes at most.")
        try:
            asked = json.loads(line)
        except ValueError:  # no JSON, or no UTF-8
            asked = None
        if not isinstance(asked, dict):
            raise ChannelRefusal("bad_request", "Send one JSON object on each line.")
        token = asked.get("token")
        if not isinstance(token, str) or not hmac.compare_digest(token.encode(), self.server.token):
            raise ChannelRefusal("unauthorised", f"The token is not the one in {PREFIX}TOKEN.")
        method = self.server.methods.get(str(asked.get("method")))
        if method is None:
            known = ", ".join(sorted(self.server.methods))
            raise ChannelRefusal("bad_request", f"There is no such method. There are {known}.")
        return method(asked)


def text_of(asked: Mapping[str, Any], name: str, *, empty: bool = False) -> str:
    """Read a field that must be text. Raises ChannelRefusal."""
    value = asked.get(name)
    if not isinstance(value, str) or not (value or empty):
        raise ChannelRefusal("bad_request", f"The field {name} must be a text.")
    return value


class HierchatProposer:
    """Draft for one vLLM engine. Of several tensor parallel workers one drafts."""

    def __init__(self, vllm_config: Any) -> None:
        """Start as vLLM asks. Raises RuntimeError, DrafterSettingsError or UserStateFileError."""
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
        self._corpora = [
            user_state.read_corpus(folder, model.get_vocab_size()) for folder in self._settings.statistics
        ]
        widest = vllm_config.scheduler_config.max_num_seqs * (1 + self._most)
        self._costs = RowCosts(widest)
        self._nobody = user_state.UserState("")
        """Without a history; how often drafts are right is learned for all such requests."""
        self._batch = Batch(self._costs, self._most, model.get_vocab_size())
        drafter = Drafter([Source.of([[1, 2, 3, 1, 2], [2, 3]])])  # compiles what drafting needs
        drafter.begin([1, 2, 3, 1, 2] * 4)
        drafter.propose()
        drafter.learn([3, 1])
        self._users = user_state.UserStates(
            user_state.UserStateFile(self._settings.file), self._settings.model, self._settings.most_tokens
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
        """Save what was learned; draft and listen no longer."""
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
        """Draft a chain for each row. `sampled_token_ids`: the forward's tokens of each row, none while its prompt is
        read. `token_ids_cpu` [rows, positions] holds `num_tokens_no_spec` [rows] tokens of each, including those."""
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
        self, sampled: list[list[int]], lengths: NDArray[np.integer[Any]], tokens: NDArray[np.integer[Any]]
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
        """End replies that vLLM no longer holds: aborted ones, which have no last token."""
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
            reply.user.writing -= 1

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
        user, name = text_of(asked, "user", empty=True), text_of(asked, "reply")
        first = asked.get("from", 0)
        if not isinstance(first, int) or isinstance(first, bool) or first < 0:
            raise ChannelRefusal("bad_request", "The field from must be a whole number, 0 or more.")
        with self._lock:
            self._end_those_gone()
            if (reply := self._remembered.get((user, name))) is None:
                raise ChannelRefusal("unknown_reply", "Nothing is known of this reply, or no longer.")
            return reply.to_json(first)

    def _forget(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        user, replies = text_of(asked, "user"), asked.get("replies")
        everything = asked.get("all") is True and replies is None
        if not everything and (
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
        except user_state.UserStateFileError as error:
            raise ChannelRefusal("storage", str(error)) from error

    def _figures(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            replies, tokens = self._users.held()
        except user_state.UserStateFileError as error:
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
