// On a narrow screen the list would cover the chat: it folds when the page opens (Gradio unfolds it a moment after the
// page is there) and when a chat is chosen.
const unfolded = () => Boolean(find('#hc-sidebar.open'));
const toggleSidebar = () => find('#hc-sidebar .toggle-button')?.click();

if (narrow()) {
  let tries = 0;
  const folding = setInterval(() => {
    const late = unfolded();
    if (late) toggleSidebar();
    tries += 1;
    if (late || tries > 100) clearInterval(folding);
  }, 50);
}

when('#hc-sidebar .toggle-button', (toggle) => {
  const say = () => toggle.setAttribute('aria-expanded', String(unfolded()));
  toggle.setAttribute('aria-label', _('List of chats'));
  say();
  changes(find('#hc-sidebar'), say, { attributes: true, attributeFilter: ['class'] });
});

function leaveSidebar() {
  if (!narrow() || !unfolded()) return;
  if (find('#hc-sidebar').contains(document.activeElement)) find('#hc-sidebar .toggle-button').focus();
  toggleSidebar();
}
window.matchMedia('(max-width: 768px)').addEventListener('change', leaveSidebar, { signal: window.hcEnd.signal });
