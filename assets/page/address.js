// The open conversation, or the panel in its place, stands in the address, so that a reload finds it again. Opening
// another one, or a new one, is a step in the browser's history; what happens inside a conversation is none.
const ANY = 'any';
let asked = []; // what the user asked for and the page does not show yet, oldest first; ANY where only the server knows it
let passed = []; // what it has shown, or was asked to, since the server owed no answer
let overtaken = false; // whether what was drawn last is of a place that was left, and came too late

// Where the page is going stands there at once: the title, the mark in the list, and soon an outline in place of what is
// left, or the view as it was seen last. The server's answer fills it.
const OUTLINE_MS = 150; // an answer that comes sooner needs none
const LOST_MS = 5000; // Gradio 6.31 may close its stream just when something is asked; asking again brings both answers
let answers = known ? 0 : 1; // that the server owes: the page itself, and each step to another chat or view
let outlining = 0;

const outline = made('div', { id: 'hc-going', role: 'status', ariaLabel: _('Loading…') });
outline.append(...['40%', '92%', '86%', '64%'].map((width) => {
  const line = made('i', {});
  line.style.width = width;
  return line;
}));
find('#hc-going')?.remove();
when('#hc-host', (host) => host.after(outline));

// `kind`: "new", "chat" or "panel". `way`: the button that leads there, where the page has it.
function showWhereTo(kind, way) {
  arrive();
  way?.closest('#hc-list li, #hc-links button')?.setAttribute('data-going', '');
  document.body.dataset.hcTo = kind;
  find('#hc-title').dataset.going = kind === 'new' ? _('New chat') : way?.textContent.trim() || '';
  const seen = kind === 'panel' && find(`#hc-panel-${way?.dataset.text}[data-seen]`);
  if (seen) seen.dataset.going = '';
  outline.hidden = Boolean(seen);
  outlining = setTimeout(() => { document.body.dataset.hcGoing = kind; }, known && !seen ? OUTLINE_MS : 0);
}
function arrive() {
  clearTimeout(outlining);
  delete document.body.dataset.hcTo;
  delete document.body.dataset.hcGoing;
  find('#hc-title')?.removeAttribute('data-going');
  for (const way of document.querySelectorAll('[data-going]')) way.removeAttribute('data-going');
}
function goTo(kind, way) {
  answers += 1;
  showWhereTo(kind, way);
  setTimeout(() => { if (known && answers) toServer(CUES.news, {}); }, LOST_MS);
}
const wayToChat = (id) => find(`#hc-list .hc-title[data-act=hc_open][data-id="${Number(id)}"]`);
const wayToPanel = (name) => [...document.querySelectorAll('#hc-links button')].find((way) => way.dataset.text === name);

// Gradio runs it behind each of these answers, also where one is an error.
window.hcArrived = () => {
  answers = Math.max(0, answers - 1);
  if (!known) {
    window.hcKnown = known = true;
    window.hcStands?.();
    for (const part of WAITING) find(part)?.removeAttribute('inert');
  }
  if (!answers && overtaken) goToAddress();
  sendEarly();
  if (answers) return;
  arrive();
  find('.hc-panel:not(.hc-off)')?.setAttribute('data-seen', '');
  toHit(); // what was hidden by the outline could not be scrolled
  sendWhatWaits();
};

// Until the server knows the page, only the box takes anything.
const WAITING = ['#hc-sidebar', '#hc-head'];
if (!known) {
  for (const part of WAITING) when(part, (element) => element.toggleAttribute('inert', !known));
  const { searchParams } = new URL(window.location.href);
  const panel = searchParams.get('view');
  const toPanel = () => { if (!known && wayToPanel(panel)) showWhereTo('panel', wayToPanel(panel)); };
  if (panel) when('#hc-title', () => when('#hc-links button', toPanel)); // these may stand there first
  else if (chatOfBox) when('#hc-title', () => { if (!known) showWhereTo('chat'); });
}

function going(id) {
  asked.push(String(id));
  if (id === ANY) return;
  boxBelongsTo(id, true); // what is typed before the server answers is for that chat
  goTo(id ? 'chat' : 'new', wayToChat(id));
}

when('#hc-new', (button) => button.addEventListener('click', () => afterMessage(() => {
  going(0);
  step('hc_new', {});
})));
acts.hc_fork = ({ id }) => {
  going(ANY);
  trigger('hc_fork', { id });
};

function goToPanel(name) {
  asked.push(`panel ${name}`);
  goTo('panel', wayToPanel(name));
  step('hc_panel', { id: 0, text: name });
}
acts.hc_panel = ({ text }) => {
  afterMessage(() => goToPanel(text));
  leaveSidebar();
};

watch('value', () => {
  const shows = (one) => one === props.value || `gone ${one}` === props.value;
  const place = asked.some(shows) ? asked.findLastIndex(shows) : asked.indexOf(ANY);
  overtaken = place < 0 && Boolean(asked.length || answers) && passed.includes(props.value);
  if (overtaken) return; // news were drawn between two answers
  passed.push(...asked.slice(0, place + 1));
  if (place >= 0 || !answers) asked = place < 0 ? [] : asked.slice(place + 1); // a chat that is left may get its number yet
  if (asked.length) return; // somebody in a hurry is past this one already: the address is that of a later one
  if (!answers) passed = [];
  passed.push(props.value);
  const url = new URL(window.location.href);
  const panel = /^panel (\w+)$/.exec(props.value)?.[1];
  const chosen = place >= 0 || panel; // some ways to a panel are no buttons of ours
  const gone = /^gone /.test(props.value); // Back came to it: the empty page takes its place in the history
  for (const [name, value] of [['c', Number(props.value) || null], ['view', panel]]) {
    if (value) url.searchParams.set(name, value);
    else url.searchParams.delete(name);
  }
  if (url.href !== window.location.href) window.history[chosen && !gone ? 'pushState' : 'replaceState'](null, '', url);
  boxBelongsTo(Number(props.value) || 0, chosen);
  follow();
});

function goToAddress() {
  overtaken = false;
  const { searchParams } = new URL(window.location.href);
  const panel = searchParams.get('view');
  if (panel) return void goToPanel(panel);
  const id = Number(searchParams.get('c')) || 0;
  going(id);
  step('hc_go', { id });
}
window.addEventListener('popstate', () => afterMessage(goToAddress), { signal: window.hcEnd.signal });
