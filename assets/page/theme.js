// Light or dark, whatever the system says: a choice of this browser. Gradio follows the system by the same class.
const preferred = window.matchMedia('(prefers-color-scheme: dark)');

const paint = () => document.body.classList.toggle('dark', window.hcDark());
paint();
preferred.addEventListener('change', () => setTimeout(paint), { signal: window.hcEnd.signal });

on('change', (event) => {
  if (!event.target.matches('#hc-theme input')) return;
  localStorage.setItem('hc-theme', event.target.value);
  paint();
});
when('#hc-theme input', () => {
  find(`#hc-theme input[value=${window.hcKeptTheme()}]`).checked = true;
});

on('change', (event) => { if (event.target.matches('#hc-language select')) chooseLanguage(event.target.value); });
when('#hc-language select', (select) => { select.value = languageKept(); });
