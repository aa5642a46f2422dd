"""Follow a reply in progress as a page does, state by state."""

from collections.abc import Iterator

from hierchat.chat.in_progress import ReplyInProgress, State


def follow(reply: ReplyInProgress) -> Iterator[State]:
    """Yield the latest state, and later ones until the reply has ended; a slow reader misses some."""
    seen: State | None = None
    while True:
        ended, state = reply.ended.wait(0.002), reply.latest
        if state is not None and state is not seen:
            seen = state
            yield state
        if ended:
            return
