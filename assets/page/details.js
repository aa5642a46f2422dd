// Details below a reply: the server draws what is in them when they are opened first.
let awaited = null; // the foot of a reply whose details are on their way
const intoView = (foot) => foot.scrollIntoView({ block: 'nearest' });

when('#hc-thread', (thread) => changes(thread, () => {
  if (!awaited?.querySelector('.hc-all-facts')?.hasChildNodes()) return;
  intoView(awaited);
  awaited = null;
}));

// Before the browser opens or closes it.
on('click', (event) => {
  const details = event.target.closest('.hc-details > summary')?.parentElement;
  if (!details) return;
  stay();
  if (details.open) return;
  const foot = details.closest('.hc-foot');
  if (foot.querySelector('.hc-all-facts').hasChildNodes()) return void setTimeout(intoView, 0, foot);
  awaited = foot;
  trigger('hc_details', { id: Number(foot.dataset.message) });
}, { capture: true });
