// The Models panel: what is typed or dropped there. A file goes to the server as a stream, piece by piece.
const modelField = () => find('#hc-model-said');
const copying = (text) => { find('#hc-model-copying').textContent = text; };
let modelSending = null;

acts.hc_model_add = () => trigger('hc_model_add', { id: 0, text: modelField().value });
when('#hc-models-added', (answer) => changes(answer, () => answer.scrollIntoView({ block: 'nearest' }), { childList: true, subtree: true }));
acts.hc_models_show = ({ text }) => {
  const shown = find(`#hc-models-list .hc-model[data-model="${CSS.escape(text)}"]`);
  if (!shown) return;
  if (!shown.checkVisibility()) { // narrowed away
    narrowField().value = '';
    narrowModels();
  }
  shown.scrollIntoView({ block: 'center' });
  shown.querySelector('.hc-model-acts button')?.focus({ preventScroll: true });
};
acts.hc_start = () => box().focus();
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

// The list is narrowed by a rule of style, which holds for what is drawn anew, too.
const narrowing = new CSSStyleSheet();
document.adoptedStyleSheets.push(narrowing);
window.hcEnd.signal.addEventListener('abort', () => narrowing.replaceSync(''));
let narrowed = ''; // selector of the models that are shown; empty: all
const narrowField = () => find('#hc-models-words');

function narrowModels() {
  const words = narrowField().value.toLowerCase().split(/\s+/).filter(Boolean);
  narrowed = words.map((word) => `[data-words*="${CSS.escape(word)}"]`).join('');
  narrowing.replaceSync(narrowed && `#hc-models-list .hc-model:not(${narrowed}) { display: none !important; }`);
  renewModels();
}

function sayShown(list) {
  const all = list.querySelectorAll('.hc-model').length;
  const n = narrowed && list.querySelectorAll(`.hc-model${narrowed}`).length;
  const found = n ? _('Shown: {n} of {all} models.', { n, all }) : _('No model of the list has these words.');
  const said = narrowed ? found : '';
  if (find('#hc-models-shown').textContent !== said) find('#hc-models-shown').textContent = said; // told once, not once a second
}

on('input', (event) => { if (event.target === narrowField()) narrowModels(); });
// Not every browser does that.
on('keydown', (event) => {
  if (event.key !== 'Escape' || event.target !== narrowField() || event.isComposing) return;
  event.target.value = '';
  narrowModels();
});

acts.hc_models_to = ({ text }) => {
  const field = find(`#${text}`);
  if (text === 'hc-hub-words' && !field.value) field.value = narrowField().value; // sent when Search is pressed
  field.focus({ preventScroll: true });
  field.scrollIntoView({ block: 'center' });
};

// A question takes the place of the button that was pressed, and the focus.
let questioned = '';
const unfoldedModels = new Set(); // what was unfolded stays so: an update takes the attribute away
const toldOf = new Set(); // models whose details the server draws, since they were opened
const foldOf = (node) => node.closest('.hc-model').dataset.model;
on('click', (event) => {
  const summary = event.target.closest('#hc-models-list summary');
  if (!summary || unfoldedModels.delete(foldOf(summary))) return;
  const name = foldOf(summary);
  unfoldedModels.add(name);
  if (toldOf.has(name)) return;
  toldOf.add(name);
  trigger('hc_model_details', { text: name });
}, { capture: true });

// A click anywhere in a row opens it, unless it was on a button, or selected text.
on('click', (event) => {
  const row = event.target.closest('#hc-models-list .hc-model > tr:first-child');
  if (!row || event.target.closest('button, a') || !window.getSelection().isCollapsed) return;
  row.parentElement.querySelector('summary').click();
});

function renewModels() {
  const list = find('#hc-models-list');
  for (const details of list.querySelectorAll('details')) {
    if (details.open !== unfoldedModels.has(foldOf(details))) details.open = !details.open;
  }
  sayShown(list);
  const question = list.querySelector('.hc-ask-remove');
  const about = question?.getAttribute('aria-label') || '';
  if (about && about !== questioned) question.querySelector('.hc-bordered').focus();
  questioned = about;
}
when('#hc-models-list', (list) => changes(list, renewModels, {
  childList: true, subtree: true, attributes: true, attributeFilter: ['aria-label', 'open', 'data-model', 'data-words'],
}));
