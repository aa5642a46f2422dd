// One dialog that asks: for a name, or whether something may go. Ctrl+Enter confirms, Escape cancels.
find('.hc-dialog')?.remove();
const dialog = document.createElement('dialog');
dialog.className = 'hc-dialog';
dialog.setAttribute('aria-labelledby', 'hc-dialog-title');
document.body.append(dialog);

function made(tag, properties) {
  return Object.assign(document.createElement(tag), properties);
}

const confirms = (event) => event.key === 'Enter' && (event.ctrlKey || event.metaKey) && !event.isComposing;

function ask({ title, text, value, action, danger }, then) {
  const form = made('form', { method: 'dialog' });
  form.append(made('h2', { id: 'hc-dialog-title', textContent: title }));
  if (text) form.append(made('p', { textContent: text, dir: 'auto' }));
  const field = value === undefined ? null : made('input', { value, ariaLabel: title, dir: 'auto' });
  if (field) form.append(field);
  const row = made('div', {});
  row.append(
    made('button', { type: 'button', textContent: 'Cancel', onclick: () => dialog.close() }),
    made('button', { type: 'submit', textContent: action, className: danger ? 'hc-danger' : 'hc-primary' }),
  );
  form.append(row);
  form.onsubmit = () => {
    const given = field ? field.value.trim() : true;
    if (given) then(given);
  };
  form.onkeydown = (event) => {
    if (!confirms(event)) return;
    event.preventDefault();
    form.requestSubmit();
  };
  dialog.replaceChildren(form);
  dialog.role = danger ? 'alertdialog' : 'dialog';
  dialog.showModal();
  field?.select();
}
