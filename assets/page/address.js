// The open conversation, or the panel in its place, stands in the address, so that a reload finds it again. Opening
// another one, or a new one, is a step in the browser's history; what happens inside a conversation is none.
const ANY = 'any';
let asked = []; // what the user asked for and the page does not show yet, oldest first; ANY where only the server knows it

function going(id) {
  asked.push(String(id));
  if (id !== ANY) boxBelongsTo(id, true); // what is typed before the server answers is for that chat
}

when('#hc-new', (button) => button.addEventListener('click', () => going(0)));
acts.hc_fork = ({ id }) => {
  going(ANY);
  trigger('hc_fork', { id });
};

function goToPanel(name) {
  asked.push(`panel ${name}`);
  step('hc_panel', { id: 0, text: name });
}
acts.hc_panel = ({ text }) => {
  goToPanel(text);
  leaveSidebar();
};

watch('value', () => {
  const place = asked.findIndex((one) => one === ANY || one === props.value || `gone ${one}` === props.value);
  asked = place < 0 ? [] : asked.slice(place + 1);
  if (asked.length) return; // somebody in a hurry is past this one already: the address is that of a later one
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

window.addEventListener('popstate', () => {
  const { searchParams } = new URL(window.location.href);
  const panel = searchParams.get('view');
  if (panel) return void goToPanel(panel);
  const id = Number(searchParams.get('c')) || 0;
  going(id);
  step('hc_go', { id });
}, { signal: window.hcEnd.signal });
