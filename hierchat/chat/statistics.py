"""Add up the steps of a reply: its text, its figures, and where its words came from."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise

from hierchat.chat.frames import Figures
from hierchat.config import GenerationSettings
from hierchat.drafting.draft_tree import DOCUMENTS, NO_MATCH, Match
from hierchat.drafting.proposer import JointDrafter, Proposer
from hierchat.engine.engine import TARGET, Step
from hierchat.hierarchy.hierarchical_drafter import HierarchicalDrafter
from hierchat.reasoning import split_reasoning
from hierchat.store import Store, records

Decode = Callable[[Sequence[int]], str]
_GREEDY = GenerationSettings()


class ReplyStatistics:
    """Collects text and figures of one growing reply. `decode` turns tokens into text, without special tokens."""

    def __init__(self, decode: Decode, settings: GenerationSettings = _GREEDY) -> None:
        self._decode = decode
        self._settings = settings
        self.tokens: list[int] = []
        self.sources: list[str] = []
        self.matches: list[Match] = []
        self.chances: list[float | None] = []
        self.forwards = 0
        self.proposed: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self.decode_ms = 0.0
        self.draft_ms = 0.0
        self.forward_ms: float | None = 0.0
        self.verify_ms: float | None = 0.0
        self.read_ms = 0.0
        self.first_ms: float | None = None
        self.prompt_tokens = 0
        self.prompt_read = 0
        self.prompt_new = 0
        """Tokens of the prompt that had to be read: the slots did not hold them."""
        self.finish: str | None = None
        self.plan: tuple[tuple[str, int], ...] | None = None
        """TurnFigures.plan."""
        self.vanilla_ms: float | None = None
        """Milliseconds per token of plain decoding, the baseline of the speed-up, once that was measured."""
        self.begun = 0
        """Tokens that an earlier run wrote, where the reply is continued."""
        self._timed = True
        self._said: str | None = None
        """The text, where the engine tells it."""
        self._ends: list[int] = []
        """Then, how much of it there is with each token."""
        self.knows_tokens = True
        """Whether `tokens` are the model's own; else those of a server that only counts them."""
        self.thought_ms: float | None = None
        """Decoding time up to the end of what the model thought; None where it thought nothing."""
        self._thought_ended = False
        self.total_ms: float | None = None
        """From Send to the last token; None where nobody looked at the clock."""
        self.waited_ms = 0.0
        """Of these, what other replies took,"""
        self.loading_ms: dict[str, float] = defaultdict(float)
        """and what it took until the model was there, by what was done meanwhile."""
        self._earlier_ms: float | None = 0.0
        """`total_ms` of the earlier run, where the reply is continued."""

    def resume(
        self, tokens: Sequence[int], sources: Sequence[str], recorded: records.TurnFigures | None
    ) -> None:
        """Continue the counts of a stored reply; without `recorded` figures (a crash) it has no speed."""
        self.tokens, self.sources, self.begun = list(tokens), list(sources), len(tokens)
        self.matches, self.chances = [NO_MATCH] * self.begun, [None] * self.begun
        self.accepted = Counter(source for source in sources if source != TARGET)
        self._timed = recorded is not None
        self._thought_ended = not split_reasoning(self.text).thinking
        self._earlier_ms = recorded.total_ms if recorded else None
        if recorded is None:
            return
        self.total_ms = recorded.total_ms
        self.waited_ms += recorded.waited_ms or 0.0
        for phase, spent in (recorded.loading or {}).items():
            self.loading_ms[phase] += spent
        self.proposed = Counter({name: count.proposed for name, count in recorded.sources.items()})
        self.forwards = recorded.forwards
        self.decode_ms = recorded.seconds * 1e3
        self.thought_ms = recorded.thought_ms
        self.draft_ms = recorded.draft_ms or 0.0
        self.forward_ms, self.verify_ms = recorded.forward_ms, recorded.verify_ms
        if recorded.first_token_seconds is not None:
            self.first_ms = recorded.first_token_seconds * 1e3

    def add(self, step: Step, since_send_ms: float | None = None) -> None:
        """Add one more step, with the milliseconds since the question was sent, where they are known."""
        if since_send_ms is not None and self._earlier_ms is not None and self._timed:
            self.total_ms = self._earlier_ms + since_send_ms
        self.waited_ms += step.waited_ms
        spent = step.draft_ms + step.forward_ms + step.verify_ms + step.waited_ms
        self.prompt_tokens = step.prompt_tokens - self.begun if step.prompt_tokens else self.prompt_tokens
        self.prompt_read = step.prompt_read or self.prompt_read
        self.finish = step.finish or self.finish
        if step.text is not None:
            self._said = (self._said or "") + step.text
            self._ends += [len(self._said)] * len(step.tokens)
            self.knows_tokens = self.knows_tokens and (step.width > 0 or not step.tokens)
        if not step.tokens:
            self.prompt_new += step.width
            self.read_ms += spent
            return
        self.tokens += step.tokens
        self.sources += step.sources
        self.matches += step.matches or [NO_MATCH] * len(step.tokens)
        self.chances += step.chances or [None] * len(step.tokens)
        self.accepted.update(source for source in step.sources if source != TARGET)
        if not self._timed:
            return
        self.forwards += step.width > 0 or step.text is None
        self.proposed.update(step.proposed)
        self.decode_ms += spent
        self.draft_ms += step.draft_ms
        if self.forward_ms is not None and self.verify_ms is not None:
            self.forward_ms += step.forward_ms
            self.verify_ms += step.verify_ms
        if self.first_ms is None:
            self.first_ms = self.read_ms + spent if since_send_ms is None else since_send_ms

    def cut(self, tokens: int) -> None:
        """Drop all tokens after the first `tokens`: they could not be stored."""
        for column in (self.tokens, self.sources, self.matches, self.chances):
            del column[tokens:]
        if self._said is not None:
            self._said = self._said[: self._ends[tokens - 1] if tokens else 0]
            del self._ends[tokens:]
        self.accepted = Counter(source for source in self.sources if source != TARGET)

    def note_thought(self, text: str) -> None:
        """Record how long the model has thought by now. `text`: the reply's text so far."""
        parts = split_reasoning(text)
        if self._timed and parts.thought and not self._thought_ended:
            self.thought_ms, self._thought_ended = self.decode_ms, not parts.thinking

    @property
    def text(self) -> str:
        """Return the reply's text so far, without an unfinished character or the stop string."""
        if self._said is not None:
            return self._said
        text = self._decode(self.tokens)
        if cut := self._cut(text):
            return text[: cut[0]]
        return text if self.finish else text.rstrip("\ufffd")

    @property
    def stop_string(self) -> str | None:
        cut = self._cut(self._decode(self.tokens)) if self.finish == "stop" else None
        return cut[1] if cut else None

    def _cut(self, text: str) -> tuple[int, str] | None:
        """Return where the first stop string begins, and that string: the longest of several; None without one."""
        found = [
            (at, -len(string), string) for string in self._settings.stop if (at := text.find(string)) >= 0
        ]
        return (min(found)[0], min(found)[2]) if found else None

    def figures(self) -> Figures:
        """Return the figures so far, as a view shows them."""
        if not self.tokens:
            return Figures(finish=self.finish)
        sampled = self._settings.seed if self._settings.temperature else None
        return replace(stored_figures(self.record(), len(self.tokens)), seed=sampled)

    def record(self) -> records.TurnFigures:
        per_second = len(self.tokens) / self.decode_ms * 1e3 if self.decode_ms and self.tokens else None
        vanilla = 1e3 / self.vanilla_ms if self.vanilla_ms and self.tokens else None
        return records.TurnFigures(
            prompt_tokens=self.prompt_tokens,
            seconds=self.decode_ms / 1e3 if self.tokens else 0.0,
            draft_ms=self.draft_ms,
            first_token_seconds=_seconds(self.first_ms) if self.tokens else None,
            forwards=self.forwards,
            tokens_per_forward=len(self.tokens) / self.forwards if self.forwards and self.tokens else None,
            proposed=sum(self.proposed.values()),
            accepted=sum(self.accepted.values()) if self._timed else 0,
            sources={
                name: records.SourceCount(self.proposed[name], self.accepted[name])
                for name in self.proposed | self.accepted
            },
            forward_ms=self.forward_ms,
            verify_ms=self.verify_ms,
            read_ms=self.read_ms,
            # An engine elsewhere may have known a part.
            prompt_read=self.prompt_new if self._said is None else None,
            thought_ms=self.thought_ms,
            total_ms=self.total_ms,
            waited_ms=None if self.total_ms is None else self.waited_ms,
            loading=None if self.total_ms is None else dict(self.loading_ms),
            plan=self.plan,
            baseline_tokens_per_second=vanilla,
            baseline="measured" if vanilla else None,
            speedup=per_second / vanilla if per_second and vanilla else None,
            finish=self.finish,
            stop_string=self.stop_string if self.tokens else None,
        )


def stored_figures(
    recorded: records.TurnFigures, tokens: int, begun: records.NewTurn | None = None
) -> Figures:
    """Return the measured figures of a stored reply of `tokens` tokens; `begun`: its model and settings."""
    seed = begun.seed if begun and begun.settings.get("temperature") else None
    if not tokens:
        return Figures(finish=recorded.finish, seed=seed, written=begun)
    counts = Counter({name: count.accepted for name, count in recorded.sources.items()})
    counts[TARGET] = tokens - sum(counts.values())
    same = {one.name: getattr(recorded, one.name) for one in fields(records.Measured)}
    return Figures(
        **same,
        tokens=tokens,
        tokens_per_second=tokens / recorded.seconds if recorded.seconds else None,
        acceptance_rate=recorded.accepted / recorded.proposed if recorded.proposed else None,
        acceptance={
            name: count.accepted / count.proposed
            for name, count in recorded.sources.items()
            if count.proposed
        },
        draft_ms=_each(recorded.draft_ms, recorded.forwards),
        forward_ms=_each(recorded.forward_ms, recorded.forwards),
        verify_ms=_each(recorded.verify_ms, recorded.forwards),
        read_seconds=_seconds(recorded.read_ms),
        total_seconds=_seconds(recorded.total_ms),
        waited_seconds=_seconds(recorded.waited_ms),
        loading={phase: ms / 1e3 for phase, ms in (recorded.loading or {}).items()},
        thought_seconds=_seconds(recorded.thought_ms),
        written=begun,
        shares=_shares(counts, told=bool(recorded.forwards) or recorded.prompt_read is not None),
        seed=seed,
    )


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3


def _each(total: float | None, forwards: int) -> float | None:
    return total / forwards if total is not None and forwards else None


def _shares(counts: Counter[str], *, told: bool) -> dict[str, float]:
    """Return each source's share of the tokens; empty if an engine elsewhere does not tell what drafted."""
    if not told and counts.keys() == {TARGET}:
        counts = Counter()
    total = sum(counts.values())
    return {name: count / total for name, count in counts.most_common() if count}


# Where the words of a stored reply came from: runs of its text, each with the place that drafted it.
@dataclass(frozen=True, slots=True)
class SourceRun:
    """Text of consecutive tokens that came from one source, and from one place of it."""

    text: str
    source: str
    tokens: int = 1
    origin: records.Origin = records.UNKNOWN
    there: records.Whereabouts | None = None
    """Where the message stands that its draft was found in; None where there is none, or where it is gone."""
    phrase: str = ""
    """What stands there word for word: the text that matched and this run, as far as it is of this reply."""

    @property
    def gone(self) -> bool:
        """Return whether the run came from a message that was deleted since."""
        return self.origin.origin_id is not None and self.there is None


def text_pieces(tokens: Sequence[int], lengths: Iterable[int], decode: Decode) -> list[str]:
    """Return the text of each run of `lengths` tokens; a character belongs to the run that completes it."""
    whole = decode(tokens)
    pieces: list[str] = []
    done = at = 0
    for length in lengths:
        done += length
        end = len(whole) if done == len(tokens) else len(decode(tokens[:done]).rstrip("\ufffd"))
        pieces.append(whole[at:end])
        at = max(at, end)
    return pieces


def runs_of(
    store: Store, user_id: int, message_id: int, tokens: Sequence[int], decode: Decode
) -> list[SourceRun]:
    """Return the runs by source of a stored reply; joined they are its whole text. Runs without text are left out."""
    spans = store.replies.spans(user_id, message_id)
    pieces = text_pieces(tokens, (span.length for span in spans), decode)
    edges = pairwise(accumulate(map(len, pieces), initial=0))
    whole = "".join(pieces)
    conversation = store.messages.get(user_id, message_id).conversation_id
    before = store.messages.path(user_id, conversation, message_id)[-2::-1]
    there = store.messages.whereabouts(
        user_id, {*(span.origin.origin_id or 0 for span in spans), *(one.id for one in before)}
    )
    runs = []
    for span, piece, (begin, end) in zip(spans, pieces, edges, strict=True):
        matched = decode(tokens[max(span.start - span.origin.matched, 0) : span.start])
        phrase = whole[max(begin - len(matched), 0) : end]
        origin = span.origin
        here = origin.slot == "context" and span.source != DOCUMENTS
        if here and origin.place is not None and origin.place < 0:
            # Which message it was is not kept, for the prompt is one text: the newest that holds the phrase.
            holds = (one.id for one in before if phrase.strip() and phrase in one.text)
            origin = replace(origin, origin_id=next(holds, None))
        if piece:
            place = there.get(origin.origin_id or 0)
            runs.append(SourceRun(piece, span.source, span.length, origin, place, phrase))
    return runs


def plan_of(drafter: Proposer | None) -> tuple[tuple[str, int], ...]:
    """Return the draft models that a reply's drafter used last, from the lowest up, with the tokens of their drafts."""
    if isinstance(drafter, JointDrafter):
        drafter = drafter.first
    if not isinstance(drafter, HierarchicalDrafter) or drafter.plan is None:
        return ()
    names = drafter.hierarchy.names
    return tuple(
        (names[level], length)
        for level, length in zip(drafter.plan.levels, drafter.plan.lengths, strict=False)
    )
