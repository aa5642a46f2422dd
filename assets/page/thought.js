// A thought that was opened stays open while its reply grows, and when it has ended: an update of the conversation takes
// the attribute away.
const thoughts = new Set(); // keys of those that are open

for (const place of ['#hc-thread', '#hc-growing', '#hc-columns']) {
  when(place, (element) => changes(element, () => {
    for (const one of element.querySelectorAll('.hc-thought')) {
      const open = thoughts.has(one.dataset.thought);
      if (one.open !== open) one.open = open;
    }
  }, { childList: true, subtree: true, attributes: true, attributeFilter: ['data-thought', 'open'] }));
}

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
  if (!thought) return;
  thoughts.add(thought.dataset.thought);
  thought.open = true;
}
