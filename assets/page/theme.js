// Light or dark, whatever the system says: a choice of this browser. Gradio follows the system by the same class.
const preferred = window.matchMedia('(prefers-color-scheme: dark)');

const paint = () => document.body.classList.toggle('dark', window.hcDark());
paint();
window.hcTheme = (theme) => { // for what Gradio runs by itself, outside of this script
  localStorage.setItem('hc-theme', theme);
  paint();
  const choice = find(`#hc-theme input[value=${theme}]`);
  if (choice) choice.checked = true;
};
preferred.addEventListener('change', () => setTimeout(paint), { signal: window.hcEnd.signal });

on('change', (event) => {
  if (!event.target.matches('#hc-theme input')) return;
  window.hcTheme(event.target.value);
});
when('#hc-theme input', () => {
  find(`#hc-theme input[value=${window.hcKeptTheme()}]`).checked = true;
});

on('change', (event) => { if (event.target.matches('#hc-language select')) window.hcLanguage(event.target.value); });
when('#hc-language select', (select) => { select.value = languageKept(); });
