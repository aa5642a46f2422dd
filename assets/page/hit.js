// A chat that is opened from a search is shown at its hit, one that is opened from a reply's sources at the words that
// drafted: they are marked for a moment.
const HIT_MS = 4000;
let hit = null; // where to go once it is drawn: chat, message, and what is marked there

// Marks the `phrase`, word for word with any markup between, or else each word of the search.
function lookFor(chat, message, phrase) {
  const words = (text) => text.match(/[\p{L}\p{N}]+/gu) ?? [];
  const sought = find('#hc-search input, #hc-search textarea').value;
  const pattern = phrase ? words(phrase).join('[^\\p{L}\\p{N}]*') : words(sought).join('|');
  hit = message ? { chat: Number(chat), message, marks: new RegExp(pattern || '(?!)', 'giu') } : null;
  setTimeout(toHit, 0); // it may be open already
}

function rangesOf(element, pattern) {
  const nodes = []; // each with where it begins in the text
  let text = '';
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.parentElement.closest('.hc-code-head, button')) continue;
    nodes.push([text.length, node]);
    text += node.data;
  }
  return [...text.matchAll(pattern)].map(({ index, 0: found }) => {
    const range = document.createRange();
    const [first, from] = nodes.findLast(([begin]) => begin <= index);
    const [last, to] = nodes.findLast(([begin]) => begin < index + found.length);
    range.setStart(from, index - first);
    range.setEnd(to, index + found.length - last);
    return range;
  });
}

function toHit() {
  if (!hit || Number(place()) !== hit.chat) return;
  const turn = find(`#hc-thread [data-message="${hit.message}"]`)?.closest('.hc-turn');
  const chat = find('#hc-chat');
  if (!turn || !chat.checkVisibility()) return;
  const within = turn.querySelector('.hc-text, .hc-user') || turn;
  const ranges = rangesOf(within, hit.marks);
  hit = null;
  stay();
  unfold(ranges[0]?.startContainer);
  const found = (ranges[0] || turn).getBoundingClientRect();
  chat.scrollTop += found.top - chat.getBoundingClientRect().top - chat.clientHeight / 3;
  turn.animate([{ backgroundColor: 'var(--hc-soft)' }, { backgroundColor: 'transparent' }], { duration: HIT_MS, easing: 'ease-in' });
  CSS.highlights?.set('hc-found', new Highlight(...ranges));
  clearTimeout(window.hcHit);
  window.hcHit = setTimeout(() => CSS.highlights?.delete('hc-found'), HIT_MS);
}

onPlace.push(() => setTimeout(toHit, 0)); // after the page has gone to the end of what is opened
when('#hc-thread', (thread) => changes(thread, toHit));
