// One dialog: it asks for a name, asks again, or tells something. Ctrl+Enter confirms, Escape cancels.
find('.hc-dialog')?.remove();
const dialog = document.createElement('dialog');
dialog.className = 'hc-dialog';
dialog.setAttribute('aria-labelledby', 'hc-dialog-title');
document.body.append(dialog);

function made(tag, properties) {
  return Object.assign(document.createElement(tag), properties);
}

const confirms = (event) => event.key === 'Enter' && (event.ctrlKey || event.metaKey) && !event.isComposing;

// The heading of `form` names it.
function show(form) {
  dialog.replaceChildren(form);
  dialog.showModal();
}

function titled(title, properties = {}) {
  const form = made('form', { method: 'dialog', ...properties });
  form.append(made('h2', { id: 'hc-dialog-title', textContent: title }));
  return form;
}

function ask({ title, value, action }, then) {
  const form = titled(title);
  const field = made('input', { value, ariaLabel: title, dir: 'auto', maxLength: 200 });
  const row = made('div', {});
  row.append(
    made('button', { type: 'button', textContent: _('Cancel'), onclick: () => dialog.close() }),
    made('button', { type: 'submit', textContent: action, className: 'hc-primary' }),
  );
  form.append(field, row);
  form.onsubmit = () => {
    const given = field.value.trim();
    if (given) then(given);
  };
  form.onkeydown = (event) => {
    if (!confirms(event)) return;
    event.preventDefault();
    form.requestSubmit();
  };
  show(form);
  field.select();
}

function sure({ title, said, action }, then) {
  const form = titled(title);
  const row = made('div', {});
  const cancel = made('button', { type: 'button', textContent: _('Cancel'), onclick: () => dialog.close() });
  row.append(cancel, made('button', { type: 'submit', textContent: action, className: 'hc-danger' }));
  form.append(made('p', { textContent: said }), row);
  form.onsubmit = then;
  show(form);
  cancel.focus();
}

// A button that asks before it acts: it carries what it asks, what that means, and what the other button does.
acts.hc_sure = ({ button, id, text }) => {
  const { then, ask: title, said, go: action } = button.dataset;
  sure({ title, said, action }, () => trigger(then, { id, text }));
};
