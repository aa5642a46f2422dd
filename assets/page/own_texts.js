// Texts of one's own, in the settings: a path is typed, files or a folder are chosen or dropped. Files go to the server one by
// one; what it can do with them it tells before anything is added.
const textsForm = () => find('.hc-texts-drop');
const tellTexts = (sentence) => { if (textsForm()) textsForm().querySelector('.hc-texts-sending').textContent = sentence; };

acts.hc_texts_path = () => {
  trigger('hc_texts_look', { id: 0, text: find('#hc-texts-path').value });
};
on('keydown', (event) => {
  if (event.key === 'Enter' && event.target.matches('#hc-texts-path') && !event.isComposing) acts.hc_texts_path();
});

async function sendTexts(name, files) {
  if (sending || !files.length) return;
  const most = Number(textsForm().dataset.most);
  if (files.length > most) return void tellTexts(_('These are more than {most} files. Type the path of their folder instead: then they are read where they lie.', { most }));
  const tickets = [];
  try {
    for (const [number, file] of files.entries()) tickets.push(await upload(file, number, files, tellTexts));
    tellTexts('');
    trigger('hc_texts_files', { id: 0, text: name, tickets });
  } catch (error) {
    tellTexts(error.message);
  }
  sending = null;
}

acts.hc_texts_choose = () => {
  const field = made('input', { type: 'file', multiple: true });
  field.onchange = () => sendTexts(field.files[0]?.name || '', [...field.files]);
  field.click();
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

const overTexts = (event) => event.dataTransfer?.types.includes('Files') && event.target.closest?.('.hc-texts-drop');
on('dragover', (event) => {
  const place = overTexts(event);
  textsForm()?.classList.toggle('hc-over', Boolean(place));
  if (place) event.preventDefault();
});
on('drop', async (event) => {
  const place = overTexts(event);
  textsForm()?.classList.remove('hc-over');
  if (!place) return;
  event.preventDefault();
  const known = place.dataset.known.split(' ');
  const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
  const loose = [...event.dataTransfer.files]; // gone once this handler has waited
  try {
    const found = entries.length ? (await Promise.all(entries.map((entry) => filesIn(entry, known)))).flat() : loose;
    if (found.length) await sendTexts((entries[0] || loose[0]).name, found);
    else tellTexts(_('There is no text in it that can be read.'));
  } catch {
    tellTexts(_('It could not be read. Type its path instead.'));
  }
});

// A question, or the choice after a look, takes the focus from the button that made way for it.
for (const [place, wanted] of [['#hc-texts', '.hc-ask-remove [data-act=hc_texts_keep]'], ['#hc-texts-state', '[data-act=hc_texts_add]']]) {
  when(place, (part) => {
    let was = false;
    changes(part, () => {
      const next = part.querySelector(wanted);
      if (next && !was && lost()) next.focus();
      was = Boolean(next);
    }, { childList: true, subtree: true });
  });
}
