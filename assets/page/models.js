// The Models panel: what is typed or dropped there. A file goes to the server as a stream, piece by piece.
const modelField = () => find('#hc-model-said');
const copying = (text) => { find('#hc-model-copying').textContent = text; };

acts.hc_model_add = () => trigger('hc_model_add', { id: 0, text: modelField().value });
when('#hc-models-added', (answer) => changes(answer, () => answer.scrollIntoView({ block: 'nearest' }), { childList: true, subtree: true }));
acts.hc_start = () => box().focus();
acts.hc_hub_search = () => trigger('hc_hub_search', { id: 0, text: find('#hc-hub-words').value });

async function copyModel(file) {
  if (sending) return;
  if (!/\.gguf$/i.test(file.name)) return void copying(_('{name} is no GGUF file. Choose a file whose name ends in .gguf.', file));
  const tell = (loaded) => copying(_('Copying {name}: {percent} %', { name: file.name, percent: Math.floor((100 * loaded) / file.size) }));
  try {
    const text = await sendFile('PUT', `models/${encodeURIComponent(file.name)}`, file, tell);
    copying('');
    trigger('hc_model_add', { id: 0, text });
  } catch (error) {
    copying(error.message);
  }
}

acts.hc_model_file = () => chooseFiles(([file]) => copyModel(file), '.gguf');
dropsOn('#hc-panel-models', (_place, { files }) => copyModel(files[0]));
on('keydown', (event) => {
  if (event.key !== 'Enter' || event.isComposing) return;
  if (event.target.matches('#hc-model-said')) acts.hc_model_add();
  if (event.target.matches('#hc-hub-words')) acts.hc_hub_search();
});

acts.hc_models_to = ({ text }) => {
  const field = find(`#${text}`);
  field.focus({ preventScroll: true });
  field.scrollIntoView({ block: 'center' });
};

// The server draws what is in the details of a model when they are opened first.
on('click', (event) => {
  const summary = event.target.closest('#hc-models-list summary');
  if (summary && !summary.nextSibling) trigger('hc_model_details', { text: summary.closest('.hc-model').dataset.model });
}, { capture: true });

// A click anywhere in a row opens it, unless it was on a button, or selected text.
on('click', (event) => {
  const row = event.target.closest('#hc-models-list .hc-model > tr:first-child');
  if (!row || event.target.closest('button, a') || !window.getSelection().isCollapsed) return;
  row.parentElement.querySelector('summary').click();
});

// A question takes the place of the button that was pressed, and the focus.
let questioned = '';
when('#hc-models-list', (list) => changes(list, () => {
  const question = list.querySelector('.hc-ask-remove');
  const about = question?.getAttribute('aria-label') || '';
  if (about && about !== questioned) question.querySelector('.hc-bordered').focus();
  questioned = about;
}, { childList: true, subtree: true, attributes: true, attributeFilter: ['aria-label'] }));
