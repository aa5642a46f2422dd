// Details that were opened stay open: an update of the conversation takes the attribute away.
const opened = new Set(); // ids of replies

when('#hc-thread', (thread) => {
  changes(thread, () => {
    for (const foot of thread.querySelectorAll('.hc-foot[data-message]')) {
      const details = foot.querySelector('details');
      if (details && details.open !== opened.has(foot.dataset.message)) details.open = !details.open;
    }
  }, { childList: true, subtree: true, attributes: true, attributeFilter: ['data-message', 'open'] });
});

// Before the browser opens or closes it.
on('click', (event) => {
  const summary = event.target.closest('#hc-thread summary');
  const id = summary?.closest('.hc-foot')?.dataset.message;
  if (!id) return;
  if (summary.parentElement.open) opened.delete(id);
  else opened.add(id);
  stay();
}, { capture: true });
