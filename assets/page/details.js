// Details that were opened stay open: an update of the conversation takes the attribute away. The server draws what is in them
// when they are opened first.
const opened = new Set(); // ids of replies
let awaited = null; // the foot of a reply whose details are on their way
const intoView = (foot) => foot.scrollIntoView({ block: 'nearest' });

when('#hc-thread', (thread) => {
  changes(thread, () => {
    for (const foot of thread.querySelectorAll('.hc-foot[data-message]')) {
      const details = foot.querySelector('details');
      if (details && details.open !== opened.has(foot.dataset.message)) details.open = !details.open;
    }
    if (!awaited?.querySelector('.hc-all-facts')?.hasChildNodes()) return;
    intoView(awaited);
    awaited = null;
  }, { childList: true, subtree: true, attributes: true, attributeFilter: ['data-message', 'open'] });
});

// Before the browser opens or closes it.
on('click', (event) => {
  const foot = event.target.closest('#hc-thread summary')?.closest('.hc-foot');
  const id = foot?.dataset.message;
  if (!id) return;
  stay();
  if (opened.delete(id)) return;
  opened.add(id);
  if (foot.querySelector('.hc-all-facts').hasChildNodes()) return void setTimeout(intoView, 0, foot);
  awaited = foot;
  trigger('hc_details', { id: Number(id) });
}, { capture: true });
