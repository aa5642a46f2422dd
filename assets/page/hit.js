// A chat that is opened from a search is shown at its hit, one that is opened from a reply's sources at the words that
// drafted: they are marked for a moment.
const HIT_MS = 4000;
let hit = null; // where to go once it is drawn: chat, message, words or a phrase

function lookFor(chat, message) {
  const words = find('#hc-search input, #hc-search textarea').value.split(/[^\p{L}\p{N}]+/u).filter(Boolean);
  hit = message ? { chat: Number(chat), message, words } : null;
  setTimeout(toHit, 0); // it may be open already
}

// What stands at `message` word for word, whatever markup is between.
function lookForPhrase(chat, message, phrase) {
  hit = { chat: Number(chat), message, phrase };
  setTimeout(toHit, 0);
}

function rangesOfPhrase(element, phrase) {
  const letters = [...phrase.matchAll(/[\p{L}\p{N}]/gu)].map(([letter]) => letter).join('');
  const places = []; // [node, begin, end] of each letter
  let text = '';
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.parentElement.closest('.hc-code-head, button')) continue;
    for (const { index, 0: letter } of node.data.matchAll(/[\p{L}\p{N}]/gu)) {
      for (let unit = 0; unit < letter.length; unit++) places.push([node, index, index + letter.length]);
      text += letter;
    }
  }
  const begin = letters ? text.indexOf(letters) : -1;
  if (begin < 0) return [];
  const ranges = [];
  for (const [node, first, last] of places.slice(begin, begin + letters.length)) {
    const before = ranges.at(-1);
    if (before?.startContainer === node) {
      before.setEnd(node, last);
    } else {
      const range = document.createRange();
      range.setStart(node, first);
      range.setEnd(node, last);
      ranges.push(range);
    }
  }
  return ranges;
}

function rangesOf(element, words) {
  const found = [];
  const some = new RegExp(words.map((word) => RegExp.escape?.(word) ?? word).join('|') || '(?!)', 'giu');
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    for (const { index, 0: word } of node.data.matchAll(some)) {
      const range = document.createRange();
      range.setStart(node, index);
      range.setEnd(node, index + word.length);
      found.push(range);
    }
  }
  return found;
}

function toHit() {
  if (!hit || Number(place()) !== hit.chat) return;
  const turn = find(`#hc-thread [data-message="${hit.message}"]`)?.closest('.hc-turn');
  const chat = find('#hc-chat');
  if (!turn || !chat.checkVisibility()) return;
  const within = turn.querySelector('.hc-text, .hc-user') || turn;
  const ranges = hit.phrase ? rangesOfPhrase(within, hit.phrase) : rangesOf(within, hit.words);
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
