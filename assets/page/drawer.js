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
  drawerButton().setAttribute('aria-expanded', String(open));
  behindDrawer();
  if (open) drawer().querySelector('[data-act=hc_settings_close]').focus();
  else if (within) drawerButton().focus();
}
acts.hc_settings = () => openDrawer(!drawn());
acts.hc_settings_close = () => openDrawer(false);

on('keydown', (event) => {
  if (event.key !== 'Escape' || event.defaultPrevented || event.isComposing || dialog.open || !drawn()) return;
  const focus = document.activeElement;
  if (!drawer().contains(focus) || (focus.closest('#hc-preset') && find('#hc-preset [role=listbox]'))) return;
  event.preventDefault();
  openDrawer(false);
});

// What is changed is kept at once: Gradio's own event of a text field tells of keys alone, not of what is pasted or cut.
let keeping = 0;
function keepSettings() {
  if (keeping) trigger('hc_keep', {});
  clearTimeout(keeping);
  keeping = 0;
}
on('input', (event) => {
  if (!event.target.closest('#hc-drawer')) return;
  clearTimeout(keeping);
  keeping = setTimeout(keepSettings, 300);
});
on('focusout', (event) => { if (event.target.closest('#hc-drawer')) keepSettings(); });

const named = (title, value, action, act) => ask({ title, value, action }, (text) => trigger(act, { text }));
acts.hc_preset_new = () => named(_('Name of the new preset'), '', _('Save'), 'hc_preset_new');
acts.hc_preset_rename = ({ text }) => named(_('Rename this preset'), text, _('Rename'), 'hc_preset_rename');
acts.hc_preset_default = ({ button }) => trigger('hc_preset_default', { on: button.getAttribute('aria-pressed') !== 'true' });

acts.hc_preset_delete = ({ text }) => {
  const form = titled(_('Delete the preset “{name}”?', { name: text }));
  const row = made('div', {});
  const cancel = made('button', { type: 'button', textContent: _('Cancel'), onclick: () => dialog.close() });
  row.append(cancel, made('button', { type: 'submit', textContent: _('Delete'), className: 'hc-primary' }));
  form.append(made('p', { textContent: _('Chats that use it keep their settings.') }), row);
  form.onsubmit = () => trigger('hc_preset_delete', {});
  show(form);
  cancel.focus();
};

// Gradio leaves the list of a dropdown open when the focus goes on by Tab.
on('keydown', (event) => {
  if (event.key !== 'Tab' || !event.target.matches('[role=combobox][aria-expanded=true]')) return;
  const escape = new KeyboardEvent('keydown', { key: 'Escape', bubbles: true, cancelable: true });
  escape.preventDefault(); // for nobody else
  event.target.dispatchEvent(escape);
});

// What is set for a chat that is not stored yet is noted in the tab, so that a reload brings it back.
const NEW_SETTINGS = 'hc-settings-new';
let settingsBack = false;
watch('value', () => {
  const isNew = /^(0|panel .*)$/.test(props.value);
  if (!isNew) sessionStorage.removeItem(NEW_SETTINGS);
  if (settingsBack) return;
  settingsBack = true;
  const text = sessionStorage.getItem(NEW_SETTINGS);
  if (text) trigger('hc_settings_back', { text });
});
when('#hc-preset-tools', (place) => changes(place, () => {
  if (!settingsBack) return;
  const note = place.querySelector('[data-unsent]');
  if (note && !chatOfBox) sessionStorage.setItem(NEW_SETTINGS, note.dataset.unsent);
  else sessionStorage.removeItem(NEW_SETTINGS);
}, { childList: true, subtree: true, attributes: true, attributeFilter: ['data-unsent'] }));
