// All HTML that changes comes from the server by one stream, the whole screen first; nothing else writes it. Beside it come
// words, by name, for the other parts of this script: what stands in the address, whether a reply is being written, and so on.
// Should the page be built twice, what the first script listened to ends.
window.hcEnd?.abort();
window.hcEnd = new AbortController();
const on = (type, then, options = {}) => document.addEventListener(type, then, { signal: window.hcEnd.signal, ...options });

let shows = {}; // what came last, by the id of an element or the name of a word
const onWord = {}; // by name: called with a word that changed, and with the one before it
const known = () => shows.step !== undefined; // whether the server has drawn the page
const place = () => shows.place ?? ''; // what the screen shows: a chat by its number, 0 for a new one, or a panel
const onPlace = []; // called when the page has come there
const unbuilt = new Set(); // ids of elements that Gradio has not built yet

function write(id) {
  const place = find(`#${id} > .html-container > div`) || find(`#${id} .html-container > div`);
  if (!place) return false;
  const made = document.createElement('template');
  made.innerHTML = shows[id];
  morph(place, made.content);
  return true;
}

// Changes only what differs, so that selections and scrolled places stay; a DETAILS stays open or closed as it is. An element
// with a `data-row` stays itself wherever it goes among its neighbours: a chat in the list, a message.
const rowOf = (node) => node.dataset?.row;
function morph(old, now) {
  const wanted = new Set([...now.children].map(rowOf));
  const rows = new Map([...old.children].filter(rowOf).map((node) => [rowOf(node), node]));
  for (const [row, node] of rows) if (!wanted.has(row)) node.remove();
  let at = old.firstChild; // all before it is as wanted
  for (const node of [...now.childNodes]) {
    const row = rowOf(node);
    const was = row ? rows.get(row) : at;
    rows.delete(row);
    if (!was || (!row && rowOf(was))) {
      old.insertBefore(node, at);
      continue;
    }
    if (was === at) at = at.nextSibling;
    else old.insertBefore(was, at);
    if (was.nodeName !== node.nodeName) was.replaceWith(node);
    else if (was.nodeType !== Node.ELEMENT_NODE) { if (was.data !== node.data) was.data = node.data; }
    else {
      sameAttributes(was, node);
      morph(was, node);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}
function sameAttributes(was, node) {
  for (const { name } of [...was.attributes]) {
    if (!node.hasAttribute(name) && !(name === 'open' && was.matches('details'))) was.removeAttribute(name);
  }
  for (const { name, value } of node.attributes) {
    if (was.getAttribute(name) === value) continue;
    was.setAttribute(name, value);
    if (name === 'value' && 'value' in was) was.value = value;
  }
}

// A part, or of one that is known only what changed: how much stays at its beginning and its end, and what comes between.
const joined = (part, before) => (typeof part === 'string' ? part
  : before.slice(0, part[0]) + part[2] + before.slice(before.length - part[1]));

function receive(news) {
  const before = shows;
  shows = { ...before };
  for (const [name, part] of Object.entries(news)) shows[name] = joined(part, before[name]);
  const changed = Object.keys(news).filter((name) => shows[name] !== before[name]);
  for (const id of changed) if (id.startsWith('hc-') && !write(id)) unbuilt.add(id);
  for (const name of Object.keys(onWord)) if (changed.includes(name)) onWord[name](shows[name], before[name]);
}
const built = new MutationObserver(() => { for (const id of unbuilt) if (write(id)) unbuilt.delete(id); });
built.observe(document.body, { childList: true, subtree: true });
window.hcEnd.signal.addEventListener('abort', () => built.disconnect());

let stream = null;
function openStream(key) {
  const { root, api_prefix: prefix } = window.gradio_config;
  stream = new EventSource(`${root}${prefix || ''}/page/${key}`);
  stream.onmessage = ({ data }) => receive(JSON.parse(data));
  // The server does not know the page any more: it was started again, or the computer slept for long.
  stream.onerror = () => {
    if (stream.readyState !== EventSource.CLOSED) return; // else the browser opens it again
    unknown = true;
    setTimeout(check, 800);
  };
}
window.hcEnd.signal.addEventListener('abort', () => stream?.close());

const openAgain = () => { if (!stream && props.value) openStream(props.value.split(' ')[0]); };
watch('value', openAgain);
openAgain();

// A browser opens six connections to a server: a seventh tab would wait for ever. So a page that nobody sees lets its stream go,
// unless a reply is written there or the chat has to go with the page.
const REST_MS = 5_000;
let resting = 0;
function rest() {
  if (busy() || going() || place().startsWith('incognito')) resting = setTimeout(rest, REST_MS);
  else {
    toServer('hc_rest', {});
    stream?.close();
    stream = null;
  }
}
on('visibilitychange', () => {
  clearTimeout(resting);
  if (document.visibilityState === 'visible') openAgain();
  else resting = setTimeout(rest, REST_MS);
});
if (document.visibilityState !== 'visible') resting = setTimeout(rest, REST_MS);
window.hcEnd.signal.addEventListener('abort', () => clearTimeout(resting));
