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

// A form with a heading that names it, with `parts`, and a row of buttons below them: `first`, if there is one, one that
// leaves the dialog, and one that does the `action`, if there is one.
function formOf({ title, first, leave = _('Cancel'), action, css = 'hc-primary', className = '' }, ...parts) {
  const form = made('form', { method: 'dialog', className });
  const row = made('div', {});
  if (first) row.append(first);
  row.append(made('button', { type: 'button', textContent: leave, className: 'hc-leave', onclick: () => dialog.close() }));
  if (action) row.append(made('button', { type: 'submit', textContent: action, className: css }));
  form.append(made('h2', { id: 'hc-dialog-title', textContent: title }), ...parts, row);
  form.onkeydown = (event) => {
    if (!confirms(event) || event.target.matches('button')) return;
    event.preventDefault();
    form.requestSubmit();
  };
  return form;
}

function show(form) {
  dialog.replaceChildren(form);
  dialog.showModal();
}

function ask({ title, value, action }, then) {
  const field = made('input', { value, ariaLabel: title, dir: 'auto', maxLength: 200 });
  const form = formOf({ title, action }, field);
  form.onsubmit = () => {
    const given = field.value.trim();
    if (given) then(given);
  };
  show(form);
  field.select();
}

function sure({ title, said, action }, then) {
  const form = formOf({ title, action, css: 'hc-danger' }, made('p', { textContent: said }));
  form.onsubmit = then;
  show(form);
  form.querySelector('.hc-leave').focus();
}

// A button that asks before it acts: it carries what it asks, what that means, and what the other button does.
acts.hc_sure = ({ button, id, text }) => {
  const { then, ask: title, said, go: action } = button.dataset;
  sure({ title, said, action }, () => trigger(then, { id, text }));
};
