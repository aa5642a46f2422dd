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
const changedAt = new Map(); // a field -> when it was changed last
function keepSettings() {
  if (keeping) trigger('hc_keep', {});
  clearTimeout(keeping);
  keeping = 0;
}
on('input', (event) => {
  if (!event.target.closest('#hc-drawer')) return;
  clearTimeout(keeping);
  keeping = setTimeout(keepSettings, 300);
  changedAt.set(event.target, Date.now());
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

// The server has a change a moment later. What was changed last before the page went is changed again on the next one.
const CHANGED = 'hc-settings-changed';
const KEPT_MS = 5000; // after which the server has it
const fields = () => [...drawer().querySelectorAll('input, textarea')].filter((field) => !field.closest('#hc-documents, #hc-preset'));
let changedAgain = false;
window.addEventListener('pagehide', () => {
  if (!changedAgain) return; // loaded again at once: what is noted waits for the next page
  const last = [...changedAt].filter(([, at]) => Date.now() - at < KEPT_MS).map(([field]) => field);
  const said = last.map((field) => [fields().indexOf(field), field.value, Boolean(field.checked)]);
  keepText(CHANGED, said.length && JSON.stringify([chatOfBox, said]));
}, { signal: window.hcEnd.signal });
function changeAgain() {
  changedAgain = true;
  const [chat, said] = JSON.parse(sessionStorage.getItem(CHANGED) || '[-1, []]');
  sessionStorage.removeItem(CHANGED);
  for (const [at, value, checked] of chat === chatOfBox ? said : []) {
    const field = fields()[at];
    if (!field) continue;
    if (Boolean(field.checked) !== checked) field.click();
    else if (field.value !== value) { field.value = value; field.dispatchEvent(new Event('input', { bubbles: true })); }
  }
}

// What is set for a chat that is not stored yet is noted in the tab, so that a reload brings it back.
const NEW_SETTINGS = 'hc-settings-new';
let settingsBack = ''; // "asked" until it is there: what the tab has noted is all that holds it
onPlace.push(() => {
  const isNew = /^(0|panel .*)$/.test(place());
  if (!isNew) sessionStorage.removeItem(NEW_SETTINGS);
  if (settingsBack) return;
  const text = sessionStorage.getItem(NEW_SETTINGS);
  settingsBack = text ? 'asked' : 'here';
  if (text) trigger('hc_settings_back', { text });
  else setTimeout(changeAgain, 100); // when the fields show what is stored
});
watch('value', () => {
  if (settingsBack !== 'asked' || !props.value.endsWith(' back')) return;
  settingsBack = 'here';
  setTimeout(changeAgain, 100);
});
when('#hc-preset-tools', (place) => changes(place, () => {
  const note = place.querySelector('[data-unsent]');
  if (settingsBack !== 'here') return;
  if (note && !chatOfBox) sessionStorage.setItem(NEW_SETTINGS, note.dataset.unsent);
  else sessionStorage.removeItem(NEW_SETTINGS);
}, { childList: true, subtree: true, attributes: true, attributeFilter: ['data-unsent'] }));
