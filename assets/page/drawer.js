// The settings of the open chat: a panel at the right, which covers the page where that is narrow.
const drawer = () => find('#hc-drawer');
const drawerButton = () => find('[data-act=hc_settings]');
const drawn = () => Boolean(drawer()?.hasAttribute('data-open'));

function behindDrawer() {
  const covered = drawn() && narrow();
  for (const behind of ['#hc-main', '#hc-sidebar']) { const part = find(behind); if (part) part.inert = covered; }
}
window.addEventListener('resize', behindDrawer, { signal: window.hcEnd.signal });

function openDrawer(open) {
  const within = drawer().contains(document.activeElement);
  drawer().toggleAttribute('data-open', open);
  document.body.toggleAttribute('data-hc-drawer', open); // `:has` of a sibling would be looked up at each word of a reply
  drawerButton().setAttribute('aria-expanded', String(open));
  behindDrawer();
  if (open) drawer().querySelector('[data-act=hc_settings_close]').focus();
  else if (within) drawerButton().focus();
}
acts.hc_settings = () => openDrawer(!drawn());
acts.hc_settings_close = () => openDrawer(false);
acts.hc_advanced = ({ button }) => {
  const open = drawer().toggleAttribute('data-advanced');
  button.setAttribute('aria-expanded', String(open));
};

on('keydown', (event) => {
  if (event.key !== 'Escape' || event.defaultPrevented || event.isComposing || dialog.open || !drawn()) return;
  const focus = document.activeElement;
  if (!drawer().contains(focus) || (focus.closest('#hc-preset') && find('#hc-preset [role=listbox]'))) return;
  event.preventDefault();
  openDrawer(false);
});

// What is changed is kept at once: Gradio's own event of a text field tells of keys alone, not of what is pasted or cut.
let keeping = 0;
const changed = new Set(); // fields that were changed since their chat was opened
function keepSettings() {
  if (keeping) trigger('hc_keep', {});
  clearTimeout(keeping);
  keeping = 0;
}
on('input', (event) => {
  if (!event.target.closest('#hc-drawer')) return;
  clearTimeout(keeping);
  keeping = setTimeout(keepSettings, 300);
  changed.add(event.target);
});
on('focusout', (event) => { if (event.target.closest('#hc-drawer')) keepSettings(); });

const named = (title, value, action, act) => ask({ title, value, action }, (text) => trigger(act, { text }));
acts.hc_preset_new = () => named(_('Name of the new preset'), '', _('Save'), 'hc_preset_new');
acts.hc_preset_rename = ({ text }) => named(_('Rename this preset'), text, _('Rename'), 'hc_preset_rename');
acts.hc_preset_default = ({ button }) => trigger('hc_preset_default', { on: button.getAttribute('aria-pressed') !== 'true' });

acts.hc_preset_delete = ({ text }) => sure({
  title: _('Delete the preset “{name}”?', { name: text }),
  said: _('Chats that use it keep their settings.'),
  action: _('Delete'),
}, () => trigger('hc_preset_delete', {}));

// Gradio leaves the list of a dropdown open when the focus goes on by Tab.
on('keydown', (event) => {
  if (event.key !== 'Tab' || !event.target.matches('[role=combobox][aria-expanded=true]')) return;
  const escape = new KeyboardEvent('keydown', { key: 'Escape', bubbles: true, cancelable: true });
  escape.preventDefault(); // for nobody else
  event.target.dispatchEvent(escape);
});

// The server has a change a moment later, and of a chat without a message nothing. What was changed since the chat was opened
// is changed again when the page was loaded again.
const CHANGED = 'hc-settings-changed';
const fields = () => [...drawer().querySelectorAll('input, textarea')].filter((field) => !field.closest('#hc-documents, #hc-preset'));
let changedAgain = false;
let settingsOf = null; // the chat of which `changed` tells
window.addEventListener('pagehide', () => {
  if (!changedAgain || going()) return; // loaded again at once: what is noted waits for the next page
  const said = [...changed].map((field) => [fields().indexOf(field), field.value, Boolean(field.checked)]);
  keepText(CHANGED, said.length && JSON.stringify([chatOfBox, said]));
}, { signal: window.hcEnd.signal });
function changeAgain() {
  const [chat, said] = JSON.parse(sessionStorage.getItem(CHANGED) || '[-1, []]');
  sessionStorage.removeItem(CHANGED);
  for (const [at, value, checked] of chat === chatOfBox ? said : []) {
    const field = fields()[at];
    if (!field) continue;
    if (Boolean(field.checked) !== checked) field.click();
    else if (field.value !== value) { field.value = value; field.dispatchEvent(new Event('input', { bubbles: true })); }
  }
  changedAgain = true;
}
onPlace.push(() => {
  if (settingsOf !== null && settingsOf !== chatOfBox) changed.clear();
  settingsOf = chatOfBox;
  if (!changedAgain) setTimeout(changeAgain, 100); // when the fields show what is stored
});
