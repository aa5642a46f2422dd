// Shows the first screen in a tree of its own, which neither scripts nor styles of the page meet. Gradio's rules for texts hold
// there, too, and ours before them, as in the page. It goes as soon as the page itself is drawn (early.js).
{
  const first = document.querySelector('#hc-first-screen');
  const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]);
  const texts = rules.map(({ cssText }) => cssText).filter((text) => !text.includes('svelte')).join('\n');
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(`@layer { ${texts} }` + window.gradio_config.css.replaceAll(':root', ':host'));
  const root = first.attachShadow({ mode: 'closed' });
  root.adoptedStyleSheets = [sheet];
  root.innerHTML = first.querySelector('template').innerHTML; // so no script in it would run
  root.firstElementChild.classList.toggle('dark', window.hcDark());
  window.hcSpeak(first.lang);
  const chat = root.querySelector('#hc-chat');
  chat.scrollTop = chat.scrollHeight;
}
