// The open conversation, or the panel in its place, stands in the address, so that a reload finds it again. Opening
// another one, or a new one, is a step in the browser's history; what happens inside a conversation is none.
// The address changes with the click; of several before an answer, the last one stands in the history.
let lastStep = 0; // the number of the last one to another chat or view
let pushed = false; // whether an unanswered step has its entry in the history
let forks = false; // a copy of the chat comes to the screen, under a number that only the server knows

// Where the page is going stands there at once: the title, the mark in the list, and soon an outline in place of what is
// left, or the view as it was seen last. The server's answer fills it.
const OUTLINE_MS = 150; // an answer that comes sooner needs none
const going = () => !known() || Number(shows.step) < lastStep; // whether the screen is not yet where the page goes
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
  outlining = setTimeout(() => { document.body.dataset.hcGoing = kind; }, known() && !seen ? OUTLINE_MS : 0);
}
function arrive() {
  clearTimeout(outlining);
  delete document.body.dataset.hcTo;
  delete document.body.dataset.hcGoing;
  find('#hc-title')?.removeAttribute('data-going');
  for (const way of document.querySelectorAll('[data-going]')) way.removeAttribute('data-going');
}
function goTo(kind, way, act, given) {
  forks = false;
  showWhereTo(kind, way);
  lastStep = nextNumber();
  trigger(act, { ...given, step: lastStep });
}
const wayToChat = (id) => find(`#hc-list .hc-title[data-act=hc_open][data-id="${Number(id)}"]`);
const wayToPanel = (name) => [...document.querySelectorAll('#hc-links button')].find((way) => way.dataset.text === name);

onWord.stage = (name) => {
  document.body.toggleAttribute('data-hc-panel', name.startsWith('panel-')); // `:has` would be looked up at each word of a reply
  for (const part of document.querySelectorAll('#hc-empty, #hc-chat, #hc-versus, .hc-panel')) {
    part.classList.toggle('hc-off', part.id !== `hc-${name}`);
    if (part.id !== 'hc-empty') part.tabIndex = 0; // keys scroll it, even where nothing in it can be focused
  }
};

// Until the server knows the page, only the box takes anything.
const WAITING = ['#hc-sidebar', '#hc-head'];
{
  for (const part of WAITING) when(part, (element) => element.toggleAttribute('inert', !known()));
  const { searchParams } = new URL(window.location.href);
  const panel = searchParams.get('view');
  const toPanel = () => { if (!known() && wayToPanel(panel)) showWhereTo('panel', wayToPanel(panel)); };
  if (panel) when('#hc-title', () => when('#hc-links button', toPanel)); // these may stand there first
  else if (chatOfBox) when('#hc-title', () => { if (!known()) showWhereTo('chat'); });
}

// `chosen`: the user went there, which is a step in the history.
function setAddress(chosen, chat, panel) {
  const url = new URL(window.location.href);
  for (const [name, value] of [['c', chat], ['view', panel]]) {
    if (value) url.searchParams.set(name, value);
    else url.searchParams.delete(name);
  }
  if (url.href !== window.location.href) window.history[chosen ? 'pushState' : 'replaceState'](null, '', url);
}
function setOut(chat, panel) {
  const before = window.location.href;
  setAddress(!pushed, chat, panel);
  pushed ||= window.location.href !== before;
}

// `id`: of the chat; 0: a new one.
function goToChat(act, id, given = {}) {
  setOut(id);
  boxBelongsTo(id, true); // what is typed before the server answers is for that chat
  goTo(id ? 'chat' : 'new', wayToChat(id), act, { id, ...given });
}

when('#hc-new', (button) => button.addEventListener('click', () => goToChat('hc_new', 0)));
acts.hc_fork = ({ id }) => {
  forks = true;
  trigger('hc_fork', { id });
};

function goToPanel(name) {
  setOut(0, name);
  goTo('panel', wayToPanel(name), 'hc_panel', { id: 0, text: name });
}
acts.hc_panel = ({ text }) => {
  goToPanel(text);
  leaveSidebar();
};

function atPlace() {
  const panel = /^panel (\w+)$/.exec(place())?.[1];
  const chat = Number(place()) || 0;
  const chosen = forks || Boolean(panel); // some ways to a panel are no buttons of ours
  forks = false;
  setAddress(chosen, chat, panel);
  boxBelongsTo(chat, chosen);
  follow();
  onPlace.forEach((then) => then());
}
onWord.place = () => { if (!going()) atPlace(); }; // or it is one that was left

onWord.step = (_step, before) => {
  if (before === undefined) {
    window.hcStands?.();
    for (const part of WAITING) find(part)?.removeAttribute('inert');
    askAgain();
  }
  if (going()) return void sendEarly(); // what was pressed before the next step is meant for here
  atPlace();
  pushed = false;
  arrive();
  find('.hc-panel:not(.hc-off)')?.setAttribute('data-seen', '');
  toHit(); // what was hidden by the outline could not be scrolled
  sendEarly();
};

function goToAddress() {
  const { searchParams } = new URL(window.location.href);
  const panel = searchParams.get('view');
  pushed = false; // what Back came to stays in the history
  if (panel) goToPanel(panel);
  else goToChat('hc_go', Number(searchParams.get('c')) || 0);
}
window.addEventListener('popstate', goToAddress, { signal: window.hcEnd.signal });
