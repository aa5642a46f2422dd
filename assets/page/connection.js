// The page says itself when hierchat does not answer, in place of Gradio's notices, and comes back by itself. It is loaded
// again only where it has to be: hierchat was started again, or does not know the page any more. Where an answer alone got
// lost on its way, Gradio loads it again. What was typed is noted in the tab (unsent.js, edit.js), so it outlives all of them.
const CHECK_MS = 4000;

const trouble = document.createElement('div');
trouble.id = 'hc-trouble';
trouble.setAttribute('role', 'alert');
const words = document.createElement('span');
const reload = document.createElement('button');
reload.type = 'button';
reload.textContent = _('Load the page again');
reload.onclick = () => window.location.reload();

function say(sentence) {
  if (words.textContent === sentence && trouble.isConnected) return;
  words.textContent = sentence;
  find('#hc-first-screen')?.remove(); // it would hide this
  trouble.replaceChildren(words, reload);
  (find('#hc-head') || document.body.lastElementChild).after(trouble);
}

let disconnected = false;
let unknown = false; // to the server, which has refused the page's stream
async function check() {
  const config = window.gradio_config;
  try {
    const answer = await fetch(`${config.root}${config.api_prefix || ''}/app_id`, { cache: 'no-store' });
    if (!answer.ok) throw new Error(answer.statusText);
    if (unknown || (await answer.json()).app_id !== config.app_id) return void window.location.reload();
    if (disconnected) trouble.remove();
    disconnected = false;
  } catch {
    disconnected = true;
    say(_('The connection to hierchat was lost. This page comes back by itself as soon as it runs again; what you typed is kept.'));
  }
}
clearInterval(window.hcCheck);
window.hcCheck = setInterval(() => { if (document.visibilityState === 'visible') check(); }, CHECK_MS);

window.hcNotices?.disconnect();
window.hcNotices = new MutationObserver(() => {
  if (document.querySelector('[data-testid="toast-body"]') && !disconnected) {
    say(_('hierchat did not answer as it should. What you typed is kept: load the page again, then try once more.'));
    check();
  }
});
window.hcNotices.observe(document.body, { childList: true, subtree: true });
