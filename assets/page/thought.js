// A thought that was opened while its reply grew is open when that has ended, too, and stands in the conversation.
const thoughts = new Set(); // keys of those that are open

when('#hc-thread', (thread) => changes(thread, () => {
  for (const one of thread.querySelectorAll('.hc-thought')) if (thoughts.has(one.dataset.thought)) one.open = true;
}, { childList: true, subtree: true }));

// Before the browser opens or closes it.
on('click', (event) => {
  const thought = event.target.closest('.hc-thought > summary')?.parentElement;
  if (!thought) return;
  if (thought.open) thoughts.delete(thought.dataset.thought);
  else thoughts.add(thought.dataset.thought);
  if (!thought.closest('#hc-growing')) stay();
}, { capture: true });

// Opens the thought that something stands in.
function unfold(node) {
  const thought = node?.parentElement.closest('.hc-thought');
  if (thought) thought.open = true;
}
