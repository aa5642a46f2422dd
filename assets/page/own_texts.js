// Files and folders for drafts, in the settings, and for a chat's documents: a path is typed, or files are chosen or dropped.
// They go to the server one by one. A form says in data-to which events it leads to.
const textsForm = (to) => find(`.hc-texts-drop[data-to="${to}"]`);
const tellTexts = (to, sentence) => { if (textsForm(to)) textsForm(to).querySelector('.hc-texts-sending').textContent = sentence; };
const forAll = (to) => Boolean(textsForm(to)?.querySelector('input[type=checkbox]')?.checked);

function addPath(node) {
  const { to } = node.closest('.hc-texts-drop').dataset;
  trigger(`${to}_add`, { id: 0, text: textsForm(to).querySelector('input[type=text]').value, on: forAll(to) });
}
acts.hc_texts_path = ({ button }) => addPath(button);
on('keydown', (event) => {
  if (event.key === 'Enter' && event.target.matches('.hc-texts-drop input[type=text]') && !event.isComposing) addPath(event.target);
});

async function sendTexts(to, name, files) {
  if (sending || !files.length) return;
  const most = Number(textsForm(to).dataset.most);
  if (files.length > most) return void tellTexts(to, _('These are more than {most} files. Type the path of their folder instead: then they are read where they lie.', { most }));
  try {
    const tickets = await upload(files, (sentence) => tellTexts(to, sentence));
    trigger(`${to}_files`, { id: 0, text: name, tickets, on: forAll(to) });
  } catch (error) {
    tellTexts(to, error.message);
  }
}

acts.hc_texts_choose = ({ button }) => {
  const { to } = button.closest('.hc-texts-drop').dataset;
  chooseFiles((files) => sendTexts(to, files[0]?.name || '', files));
};

// All files of a dropped folder but hidden ones and those that are no text by their name.
async function filesIn(entry, known) {
  if (entry.isFile) return [await new Promise((resolve, reject) => entry.file(resolve, reject))];
  const reader = entry.createReader();
  const found = [];
  for (;;) { // a folder tells its entries in pieces
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) return found;
    for (const one of some) {
      const suffix = /\.[^.]*$/.exec(one.name.replace(/\.gz$/i, ''))?.[0].toLowerCase();
      const wanted = !one.name.startsWith('.') && (one.isDirectory ? one.name !== 'node_modules' : known.includes(suffix));
      if (wanted) found.push(...await filesIn(one, known));
    }
  }
}

dropsOn('.hc-texts-drop', async (place, data) => {
  const { to } = place.dataset;
  const known = place.dataset.known.split(' ');
  const entries = [...data.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
  const loose = [...data.files]; // gone once this handler has waited
  try {
    const found = entries.length ? (await Promise.all(entries.map((entry) => filesIn(entry, known)))).flat() : loose;
    if (found.length) await sendTexts(to, (entries[0] || loose[0]).name, found);
    else tellTexts(to, _('There is no text in it that can be read.'));
  } catch {
    tellTexts(to, _('It could not be read. Type its path instead.'));
  }
});
