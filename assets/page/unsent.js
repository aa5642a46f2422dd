// What stands in the box and was not sent is kept for each chat, in this tab alone: it outlives a reload.
const UNSENT = 'hc-unsent-';
let chatOfBox = Number(new URL(window.location.href).searchParams.get('c')) || 0; // to which the text in the box belongs

// Too much for the tab's storage is kept by nothing but the page.
function keepText(name, text) {
  try {
    if (text) sessionStorage.setItem(name, text);
    else sessionStorage.removeItem(name);
  } catch { sessionStorage.removeItem(name); }
}

function keepUnsent() {
  if (box()) keepText(UNSENT + chatOfBox, box().value);
}
on('input', (event) => { if (event.target === box()) keepUnsent(); });
window.addEventListener('pagehide', keepUnsent, { signal: window.hcEnd.signal });
onBusy.push(keepUnsent); // sending empties the box, and says so nowhere else

const unsent = () => sessionStorage.getItem(UNSENT + chatOfBox) || '';
function fillBox(text) {
  if (box().value === text) return;
  box().value = text;
  box().dispatchEvent(new Event('input', { bubbles: true }));
}

// A message that the server has taken leaves the box, or what is kept of that of another chat; what was typed since stays, and
// so does what was refused and stands before it.
const without = (all, { text, behind = '' }) => {
  const rest = behind ? all.slice(behind.length).trimStart() : all;
  if (!text || !all.startsWith(behind) || !rest.startsWith(text)) return all;
  return [behind, rest.slice(text.length).trimStart()].filter(Boolean).join(' ');
};
function changeText(chat, change) {
  if (chat === chatOfBox) fillBox(change(box().value));
  else keepText(UNSENT + chat, change(sessionStorage.getItem(UNSENT + chat) || ''));
}
const leftTheBox = (message) => changeText(message.chat, (all) => without(all, message));

// A message that was edited and refused stands in the box of its chat, before what was typed there and is not on its way.
const intoTheBox = ({ chat, text }) => changeText(chat, (all) => {
  const since = underWay(chat).reduce(without, all);
  return [all.slice(0, all.length - since.length), text, since].map((one) => one.trim()).filter(Boolean).join('\n\n');
});

// `chosen`: the user went there. Where a chat gets its number, or is gone, the text stays in the box.
function boxBelongsTo(chat, chosen) {
  if (chat === chatOfBox) return;
  keepUnsent();
  if (!chosen) sessionStorage.removeItem(UNSENT + chatOfBox);
  if (!chosen) {
    for (const one of underWay()) one.chat = chat;
    noteAsked();
  }
  const stays = chosen ? '' : box()?.value;
  chatOfBox = chat;
  const there = unsent();
  if (box()) fillBox(stays && there && stays !== there ? `${there}\n\n${stays}` : stays || there); // `there` may have been put back
  keepUnsent();
}
