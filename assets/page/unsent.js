// What stands in the box and was not sent is kept for each chat, in this tab alone: it outlives a reload.
const UNSENT = 'hc-unsent-';
let chatOfBox = null; // the chat to which the text in the box belongs; null until the page has said which is open

function keepUnsent() {
  if (chatOfBox === null || !box()) return;
  if (box().value) sessionStorage.setItem(UNSENT + chatOfBox, box().value);
  else sessionStorage.removeItem(UNSENT + chatOfBox);
}
on('input', (event) => { if (event.target === box()) keepUnsent(); });
window.addEventListener('pagehide', keepUnsent, { signal: window.hcEnd.signal });
onBusy.push(keepUnsent); // sending empties the box, and says so nowhere else

function putUnsent() {
  const text = sessionStorage.getItem(UNSENT + chatOfBox) || '';
  if (box().value === text) return;
  box().value = text;
  box().dispatchEvent(new Event('input', { bubbles: true }));
}

// `chosen`: the user went there. Where a chat gets its number, or is gone, the text stays in the box.
function boxBelongsTo(chat, chosen) {
  if (chat === chatOfBox) return;
  const first = chatOfBox === null;
  if (!first) keepUnsent();
  if (!first && !chosen) sessionStorage.removeItem(UNSENT + chatOfBox);
  chatOfBox = chat;
  if (!box()) { when('#hc-box textarea', putUnsent); return; }
  if (chosen || (first && !box().value)) putUnsent();
  else keepUnsent();
}
