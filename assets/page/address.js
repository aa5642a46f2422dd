// The open conversation stands in the address, so that a reload finds it again. Opening another one, or a new one, is a
// step in the browser's history; what happens inside a conversation is none.
const ANY = 'any';
let asked = null; // the id that the user asked for; ANY where only the server knows it

function going(id) {
  asked = String(id);
  if (id !== ANY) boxBelongsTo(id, true); // what is typed before the server answers is for that chat
}

when('#hc-new', (button) => button.addEventListener('click', () => going(0)));
acts.hc_fork = ({ id }) => {
  going(ANY);
  trigger('hc_fork', { id });
};

watch('value', () => {
  const url = new URL(window.location.href);
  const chosen = asked === ANY || props.value === asked;
  if (Number(props.value)) url.searchParams.set('c', props.value);
  else url.searchParams.delete('c');
  if (url.href !== window.location.href) window.history[chosen ? 'pushState' : 'replaceState'](null, '', url);
  asked = null;
  boxBelongsTo(Number(props.value) || 0, chosen);
  follow();
});

window.addEventListener('popstate', () => {
  const id = Number(new URL(window.location.href).searchParams.get('c')) || 0;
  going(id);
  trigger('hc_go', { id });
}, { signal: window.hcEnd.signal });
