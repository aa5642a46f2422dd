// A question, or a reply, is edited where it stands. The editor lives in a shadow root of its message: an update of the
// conversation, which changes what stands in the message, does not reach it.
const EDITOR_STYLE = `
  form { display: flex; flex-direction: column; align-items: flex-end; gap: 8px; margin-bottom: 16px; }
  textarea { box-sizing: border-box; max-width: 100%; max-height: 50dvh; padding: 8px 16px; resize: vertical; font: inherit;
    font-size: 16px; line-height: 1.6; color: var(--hc-ink); background: var(--hc-soft); border: 0;
    box-shadow: inset 0 0 0 1px var(--hc-accent); border-radius: 16px; }
  div { display: flex; gap: 8px; align-items: center; flex-wrap: wrap; justify-content: flex-end; }
  p { margin: 0; font-size: 13px; line-height: 20px; color: var(--hc-quiet); }
  button { font: inherit; font-size: 14px; font-weight: 500; height: 32px; padding: 0 16px; border-radius: 8px; cursor: pointer;
    border: 1px solid var(--hc-line); background: none; color: var(--hc-ink); }
  button[type=submit] { background: var(--hc-accent); border-color: var(--hc-accent); color: var(--hc-accent-text); }
  :focus-visible { outline: 2px solid var(--hc-accent); outline-offset: 2px; }
`;
const WRITING = _('A reply is being written. Send this when it has ended, or stop it first.');
const EDITED = 'hc-edited-'; // and the id of a message: what was typed in an editor that an update, or a reload, closed
const EDITING = 'hc-editing'; // the message whose editor is open: a reload opens it again
const MOST_MEASURED = 20_000; // characters; to measure more after each key would take longer than the key
let editor = null;
let sentId = null; // of the reply whose editor was sent, until the server's answer changes the chat

function closeEditor() {
  if (!editor) return;
  const { article, id, field } = editor;
  editor = null;
  keepText(EDITED + id, field.value);
  sessionStorage.removeItem(EDITING);
  article.shadowRoot.replaceChildren(document.createElement('slot'));
}

const messageOf = (article) => (article.dataset.message ? article : article.querySelector('[data-message]'))?.dataset.message;

acts.hc_edit = ({ button, id }) => {
  const bubble = button.closest('.hc-turn').querySelector('.hc-user');
  edit(button, id, bubble, bubble.textContent, {
    name: _('Edit your message'), save: _('Send'), saves: _('Send edited message'),
    sends: (text) => trigger('hc_edit', { id, text }, { chat: chatOfBox, text, edited: id }),
  });
};

// What the model wrote stands in the button that copies it. The user's version stands beside it.
acts.hc_edit_reply = ({ button, id }) => {
  const article = button.closest('.hc-turn');
  const text = article.querySelector('[data-act=hc_copy]').dataset.text;
  edit(button, id, article.querySelector('.hc-text, .hc-spans') || article, text, {
    name: _('Edit the reply'), save: _('Save'), saves: _('Save as your version of the reply'),
    sends: (given) => {
      if (given !== text) trigger('hc_edit_reply', { id, text: given });
      sentId = id;
    },
  });
};

function edit(button, id, bubble, text, { name, save, saves, sends }) {
  closeEditor();
  const article = button.closest('.hc-turn');
  const { act } = button.dataset;
  const { width, height } = bubble.getBoundingClientRect();
  const field = made('textarea', { value: sessionStorage.getItem(EDITED + id) ?? text, ariaLabel: name, dir: 'auto' });
  field.style.width = `max(${Math.ceil(width)}px, min(100%, 24rem))`;
  const grow = () => {
    if (field.value.length > MOST_MEASURED) return void (field.style.height = '50dvh');
    field.style.height = `${height}px`;
    field.style.height = `${Math.max(height, field.scrollHeight)}px`;
  };
  const keys = touch() ? '' : _('Enter: new line. {key}+Enter: {action}.', { key: COMMAND, action: save });
  const remark = made('p', { role: 'status', textContent: keys });
  const cancel = made('button', { type: 'button', textContent: _('Cancel') });
  const row = made('div', {});
  row.append(remark, cancel, made('button', { type: 'submit', textContent: save, ariaLabel: saves }));
  const form = made('form', { ariaLabel: name });
  form.append(field, row);

  const leave = () => {
    closeEditor();
    sessionStorage.removeItem(EDITED + id);
    article.querySelector(`[data-act=${act}]`)?.focus();
  };
  cancel.onclick = leave;
  field.oninput = () => {
    keepText(EDITED + id, field.value);
    grow();
  };
  form.onsubmit = (event) => {
    event.preventDefault();
    if (!field.value.trim()) return;
    if (busy()) {
      remark.textContent = WRITING;
      return;
    }
    leave();
    keepText(EDITED + id, field.value);
    sessionStorage.setItem(EDITING, id);
    sends(field.value);
  };
  form.onkeydown = (event) => {
    event.stopPropagation();
    if (event.key === 'Escape' && !event.isComposing) leave();
    if (!confirms(event)) return;
    event.preventDefault();
    form.requestSubmit();
  };
  const root = article.shadowRoot || article.attachShadow({ mode: 'open' });
  root.replaceChildren(made('style', { textContent: EDITOR_STYLE }), form);
  editor = { article, id, field };
  sessionStorage.setItem(EDITING, id);
  stay();
  grow();
  field.focus({ preventScroll: true });
  field.setSelectionRange(field.value.length, field.value.length);
  form.scrollIntoView({ block: 'nearest' });
}

function editSent(id) {
  if (editor?.id === id) closeEditor(); // a reload has opened it again
  sessionStorage.removeItem(EDITED + id);
  sessionStorage.removeItem(EDITING);
}

// An update may put another message in its place.
when('#hc-thread', (thread) => changes(thread, () => {
  if (sentId !== null) editSent(sentId);
  sentId = null;
  if (editor && (!editor.article.isConnected || messageOf(editor.article) !== String(editor.id))) closeEditor();
}, { childList: true, attributes: true, subtree: true, attributeFilter: ['data-message'] }));

const wasEditing = sessionStorage.getItem(EDITING);
let reopened = !wasEditing;
when('#hc-thread', (thread) => changes(thread, () => {
  if (reopened || !thread.querySelector('.hc-turn')) return;
  reopened = true;
  const acts = '[data-act=hc_edit][data-id="ID"], [data-act=hc_edit_reply][data-id="ID"]';
  const button = sessionStorage.getItem(EDITED + wasEditing) && thread.querySelector(acts.replaceAll('ID', wasEditing));
  if (button) button.click();
  else sessionStorage.removeItem(EDITING);
}));
