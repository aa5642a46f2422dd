// Buttons in generated HTML reach the server through `trigger`. Only those with this process's key count, so that
// nothing in a reply can press one.
const KEY = '__KEY__';
const SERVER = ['hc_open', 'hc_rename', 'hc_delete', 'hc_again', 'hc_edit', 'hc_sources', 'hc_branch', 'hc_example'];

const dialog = document.createElement('dialog');
dialog.className = 'hc-dialog';
document.body.append(dialog);

function ask({ title, text, value, action, danger }, then) {
  dialog.replaceChildren();
  const form = document.createElement('form');
  form.method = 'dialog';
  const heading = document.createElement('h2');
  heading.textContent = title;
  form.append(heading);
  if (text) {
    const line = document.createElement('p');
    line.textContent = text;
    form.append(line);
  }
  let field = null;
  if (value !== undefined) {
    field = document.createElement(value.area ? 'textarea' : 'input');
    field.value = value.text;
    field.setAttribute('aria-label', title);
    if (value.area) field.rows = 6;
    form.append(field);
  }
  const row = document.createElement('div');
  const cancel = document.createElement('button');
  cancel.type = 'button';
  cancel.textContent = 'Cancel';
  cancel.onclick = () => dialog.close();
  const confirm = document.createElement('button');
  confirm.type = 'submit';
  confirm.textContent = action;
  confirm.className = danger ? 'hc-danger' : 'hc-primary';
  row.append(cancel, confirm);
  form.append(row);
  form.onsubmit = () => {
    const given = field ? field.value.trim() : true;
    if (given) then(given);
  };
  dialog.append(form);
  dialog.showModal();
  if (field) field.select();
}

async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without a secure origin there is no clipboard API.
    const area = document.createElement('textarea');
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
  const label = button.textContent;
  button.textContent = 'Copied';
  setTimeout(() => { button.textContent = label; }, 1200);
}

function press(event) {
  const button = event.target.closest('[data-act]');
  if (!button || button.dataset.key !== KEY || button.disabled) return;
  const act = button.dataset.act;
  const id = Number(button.dataset.id);
  const text = button.dataset.text || '';
  if (act === 'hc_copy') {
    copy(button, text);
  } else if (act === 'hc_rename') {
    ask({ title: 'Rename this chat', value: { text }, action: 'Rename' }, (given) => trigger(act, { id, text: given }));
  } else if (act === 'hc_edit') {
    ask({ title: 'Edit your message', value: { text, area: true }, action: 'Send' },
      (given) => trigger(act, { id, text: given }));
  } else if (act === 'hc_delete') {
    ask({ title: 'Delete this chat?', action: 'Delete', danger: true,
      text: `“${text}” and all that was learnt from it will be gone for good.` }, () => trigger(act, { id, text }));
  } else if (SERVER.includes(act)) {
    trigger(act, { id, text });
    if (act === 'hc_open' && window.innerWidth < 768) {
      document.querySelector('.sidebar.open .toggle-button')?.click();
    }
  }
}

if (window.hcPress) document.removeEventListener('click', window.hcPress);
window.hcPress = press;
document.addEventListener('click', press);

// On a narrow screen the list would cover the chat. Gradio opens it a moment after the page is there.
if (window.innerWidth < 768) {
  let tries = 0;
  const folding = setInterval(() => {
    const toggle = document.querySelector('.sidebar.open .toggle-button');
    toggle?.click();
    tries += 1;
    if (toggle || tries > 100) clearInterval(folding);
  }, 50);
}

// The open conversation stands in the address, so that a reload finds it again.
watch('value', () => {
  const url = new URL(window.location.href);
  if (props.value) url.searchParams.set('c', props.value);
  else url.searchParams.delete('c');
  if (url.href !== window.location.href) window.history.replaceState(null, '', url);
});
