"""An answer of the page costs what it changes, and not what it could change."""

from __future__ import annotations

from copy import copy
from typing import Any

import gradio as gr


class Changes(gr.Blocks):
    """Blocks whose handlers name what they change, of many outputs.

    Gradio 6.31 makes each output of an event anew for each answer, also what is skipped: 30 ms of a processor for a
    hundred outputs, a dozen times a second while a reply is written, and the engine waits for the interpreter.
    """

    async def postprocess_data(self, block_fn: Any, predictions: Any, state: Any) -> list[Any]:
        """As Gradio's own, which sees the outputs alone that `predictions` names."""
        if not isinstance(predictions, dict) or not all(
            isinstance(key, gr.blocks.Block) for key in predictions
        ):
            return await super().postprocess_data(block_fn, predictions, state)
        skipped = gr.skip()
        named = {block._id: value for block, value in predictions.items() if value != skipped}
        part = copy(block_fn)
        part.outputs = [block for block in block_fn.outputs if block._id in named]
        if len(part.outputs) < len(named):  # one is no output of this event: Gradio says which
            return await super().postprocess_data(block_fn, predictions, state)
        made: dict[int, Any] = {}
        if part.outputs:
            values = {block: named[block._id] for block in part.outputs}
            done = await super().postprocess_data(part, values, state)
            made = {block._id: value for block, value in zip(part.outputs, done, strict=True)}
        return [made.get(block._id, gr.skip()) for block in block_fn.outputs]
