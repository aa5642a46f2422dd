// The open conversation stands in the address, so that a reload finds it again. Opening another one, or a new one, is a
// step in the browser's history; what happens inside a conversation is none.
let asked = null; // the id that a click asked for

function going(id) {
  asked = String(id);
}

when('#hc-new', (button) => button.addEventListener('click', () => going(0)));

watch('value', () => {
  const url = new URL(window.location.href);
  if (Number(props.value)) url.searchParams.set('c', props.value);
  else url.searchParams.delete('c');
  if (url.href !== window.location.href) {
    window.history[props.value === asked ? 'pushState' : 'replaceState'](null, '', url);
  }
  asked = null;
  follow();
});

window.addEventListener('popstate', () => {
  asked = null;
  trigger('hc_go', { id: Number(new URL(window.location.href).searchParams.get('c')) || 0 });
}, { signal: window.hcEnd.signal });
