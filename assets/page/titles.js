// Some time after a reply the model may have named its chat: the page asks, less and less often.
const ASK_AFTER = [6, 9, 15, 30, 60, 120]; // seconds
let asking = [];

onBusy.push((writing) => {
  asking.forEach(clearTimeout);
  asking = writing ? [] : ASK_AFTER.map((seconds) => setTimeout(() => trigger('hc_titled', {}), seconds * 1000));
});
window.hcEnd.signal.addEventListener('abort', () => asking.forEach(clearTimeout));
