// Tags: chosen for a chat in a dialog; pressed above the list, one is asked for in the search.
const TAG = /(?<!\S)tag:(?:"([^"]*)"?|(\S+))/giu;
const searchField = () => find('#hc-search input, #hc-search textarea');
const tagsInUse = () => [...document.querySelectorAll('#hc-list .hc-filter')].map((one) => one.dataset.text);

acts.hc_filter = ({ button, text }) => {
  const field = searchField();
  const without = (name) => field.value.replace(TAG, (whole, quoted, bare) => (
    !name || (quoted ?? bare).toLowerCase() === name.toLowerCase() ? '' : whole)).replace(/\s+/g, ' ').trim();
  const pressed = button.getAttribute('aria-pressed') === 'true';
  const asked = /\s/.test(text) ? `tag:"${text}"` : `tag:${text}`;
  field.value = !text || pressed ? without(text) : `${field.value} ${asked}`.trim();
  field.dispatchEvent(new Event('input', { bubbles: true }));
};

function editTags(id, title, given) {
  const form = titled(_('Tags of “{title}”', { title }), { className: 'hc-choose-tags' });
  const choices = made('fieldset', { ariaLabel: _('Tags') });
  const choice = (name, checked) => {
    const same = [...choices.querySelectorAll('input')].find((box) => box.value.toLowerCase() === name.toLowerCase());
    if (same) return void (same.checked = checked || same.checked);
    const label = made('label', { dir: 'auto' });
    label.append(made('input', { type: 'checkbox', value: name, checked }), made('span', { textContent: name }));
    choices.append(label);
  };
  given.forEach((name) => choice(name, true));
  tagsInUse().forEach((name) => choice(name, false));
  const field = made('input', { type: 'text', placeholder: _('New tags, with commas between'), ariaLabel: _('New tags'), dir: 'auto' });
  const take = () => {
    const names = field.value.split(',').map((name) => name.replace(/["#]/g, ' ').trim().replace(/\s+/g, ' '));
    names.filter(Boolean).forEach((name) => choice(name, true));
    field.value = '';
  };
  const add = made('button', { type: 'button', textContent: _('Add'), onclick: () => { take(); field.focus(); } });
  const line = made('p', {});
  line.append(field, add);
  const row = made('div', {});
  row.append(
    made('button', { type: 'button', textContent: _('Cancel'), onclick: () => dialog.close() }),
    made('button', { type: 'submit', textContent: _('Save'), className: 'hc-primary' }),
  );
  form.append(choices, line, row);
  form.onsubmit = () => {
    take();
    trigger('hc_tags', { id, tags: [...choices.querySelectorAll('input:checked')].map((box) => box.value) });
  };
  show(form);
  field.focus();
}
