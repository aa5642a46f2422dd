// The Models panel: what is typed or dropped there. A file goes to the server as a stream, piece by piece.
const modelField = () => find('#hc-model-said');
const copying = (text) => { find('#hc-model-copying').textContent = text; };
let modelSending = null;

acts.hc_model_add = () => {
  trigger('hc_model_add', { id: 0, text: modelField().value });
  modelField().value = '';
};
acts.hc_hub_search = () => trigger('hc_hub_search', { id: 0, text: find('#hc-hub-words').value });
acts.hc_model_file = () => find('#hc-model-file').click();

function copyModel(file) {
  if (modelSending) return;
  if (!/\.gguf$/i.test(file.name)) return void copying(_('{name} is no GGUF file. Choose a file whose name ends in .gguf.', file));
  modelSending = new XMLHttpRequest();
  const done = (text) => {
    modelSending = null;
    copying(text);
  };
  modelSending.upload.onprogress = ({ loaded }) => copying(_('Copying {name}: {percent} %', { name: file.name, percent: Math.floor((100 * loaded) / file.size) }));
  modelSending.onload = () => {
    const { status, responseText } = modelSending;
    done(status === 201 ? '' : responseText || _('{name} could not be copied.', file));
    if (status === 201) trigger('hc_model_add', { id: 0, text: responseText });
  };
  modelSending.onerror = () => done(_('{name} could not be copied: the connection was lost. Try again.', file));
  modelSending.onabort = () => done('');
  const path = window.location.pathname.replace(/[^/]*$/, '');
  modelSending.open('PUT', `${path}models/${encodeURIComponent(file.name)}`);
  modelSending.send(file);
}

on('change', (event) => {
  if (!event.target.matches('#hc-model-file') || !event.target.files.length) return;
  copyModel(event.target.files[0]);
  event.target.value = '';
});
on('keydown', (event) => {
  if (event.key !== 'Enter' || event.isComposing) return;
  if (event.target.matches('#hc-model-said')) acts.hc_model_add();
  if (event.target.matches('#hc-hub-words')) acts.hc_hub_search();
});

const modelsShown = () => Boolean(find('#hc-panel-models')?.checkVisibility());
on('dragover', (event) => {
  if (modelsShown() && event.dataTransfer.types.includes('Files')) event.preventDefault();
});
on('drop', (event) => {
  if (!modelsShown() || !event.dataTransfer.files.length) return;
  event.preventDefault();
  copyModel(event.dataTransfer.files[0]);
});

// A question takes the place of the button that was pressed, and the focus.
let questioned = '';
const draftsOpen = new Set(); // models whose draft models are shown: an update takes the attribute away
on('click', (event) => {
  const summary = event.target.closest('.hc-draft-models summary');
  const name = summary?.closest('.hc-model').dataset.model;
  if (name && !draftsOpen.delete(name)) draftsOpen.add(name);
}, { capture: true });
when('#hc-models-list', (list) => changes(list, () => {
  for (const details of list.querySelectorAll('.hc-draft-models')) {
    const open = draftsOpen.has(details.closest('.hc-model').dataset.model);
    if (details.open !== open) details.open = open;
  }
  const question = list.querySelector('.hc-ask-remove');
  const about = question?.getAttribute('aria-label') || '';
  if (about && about !== questioned) question.querySelector('.hc-bordered').focus();
  questioned = about;
}, { childList: true, subtree: true, attributes: true, attributeFilter: ['aria-label', 'open', 'data-model'] }));
