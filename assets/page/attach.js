// Files for the next message: chosen, dropped or pasted. The server reads them; what it has stands above the box, and is
// noted in the tab, so that a reload finds it again.
const COMPOSER = 'hc-composer';
const PASTED = 'hc-pasted-'; // and the key: the text, in case hierchat is started again
const LONG = 4000; // characters; what is pasted and longer becomes a file
const MOST_BYTES = 20e6; // a larger file is not sent: its size is enough to be refused
const MOST_KEPT = 1e6;

const noted = JSON.parse(sessionStorage.getItem(COMPOSER) || '{"files": []}');
when('#hc-box textarea', () => { if (!box().value) fillBox(unsent()); });

const underway = new Set(); // keys of files that the server does not show yet

const newKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, '0')).join('');
const reading = () => underway.size > 0 || Boolean(find('#hc-tray [data-reading]'));

// Files are read and sent side by side: each is numbered when it is chosen, and the server sorts by that.
function begun() {
  const key = newKey();
  underway.add(key);
  return { key, chat: chatOfBox || 0, step: nextNumber() };
}

function attach(given, file = begun()) {
  const { key } = file;
  if (given.pasted && given.pasted.length < MOST_KEPT) {
    try { sessionStorage.setItem(PASTED + key, given.pasted); } catch { /* full: then a reload alone keeps it */ }
  }
  trigger('hc_attached', { ...file, ...given });
}

function attachFile(file) {
  const given = { name: file.name || _('File'), size: file.size };
  const chosen = begun();
  if (file.size > MOST_BYTES) return void attach(given, chosen);
  const reader = new FileReader();
  reader.onload = () => attach({ ...given, data: reader.result.split(',')[1] || '' }, chosen);
  reader.onerror = () => attach(given, chosen); // a folder, or gone: the server says so
  reader.readAsDataURL(file);
}

function chooseFiles(then, accept = '') {
  const chooser = made('input', { type: 'file', multiple: true, accept });
  chooser.onchange = () => then([...chooser.files]);
  chooser.click();
}
acts.hc_attach = () => chooseFiles((files) => {
  files.forEach(attachFile);
  if (!touch()) box().focus();
});
for (const act of ['hc_detach', 'hc_inline', 'hc_next_edit', 'hc_next_cancel']) {
  acts[act] = ({ text }) => {
    trigger(act, { text });
    if (!touch() || act === 'hc_next_edit') box().focus({ preventScroll: true });
  };
}

// What opens stays where it was pressed. A number in a reply leads to the passage, whose text opens below the reply.
let opens = null;
acts.hc_attachment = ({ button, id }) => {
  stay();
  opens = button.matches('.hc-cite') ? id : null;
  trigger('hc_attachment', { id });
};
when('#hc-thread', (thread) => changes(thread, () => {
  if (opens === null) return;
  thread.querySelector(`[aria-expanded=true][data-id="${opens}"] + pre`)?.scrollIntoView({ block: 'nearest' });
  opens = null;
}));

on('paste', (event) => {
  if (event.target !== box()) return;
  const text = event.clipboardData.getData('text/plain');
  const files = [...event.clipboardData.files];
  if (text.length <= LONG && (text || !files.length)) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  if (text) attach({ name: '', pasted: text });
  else files.forEach(attachFile);
}, { capture: true });

const dragsFiles = (event) => Boolean(event.dataTransfer?.types.includes('Files'));
// Files that are dropped on `selector` are for `then`, which gets the element and the event's data.
function dropsOn(selector, then) {
  const placeOf = (event) => dragsFiles(event) && event.target.closest?.(selector);
  const mark = (place) => document.querySelectorAll(selector).forEach((one) => one.classList.toggle('hc-over', one === place));
  on('dragover', (event) => {
    mark(placeOf(event));
    if (placeOf(event)) event.preventDefault();
  });
  on('drop', (event) => {
    mark(null);
    if (!placeOf(event)) return;
    event.preventDefault();
    then(placeOf(event), event.dataTransfer);
  });
}
const dragging = (is) => document.body.toggleAttribute('data-hc-drag', is);
on('dragover', (event) => {
  if (!dragsFiles(event)) return;
  event.preventDefault();
  dragging(!dialog.open && box().checkVisibility() && !event.target.closest?.('.hc-texts-drop'));
}, { capture: true });
on('dragleave', (event) => { if (!event.relatedTarget) dragging(false); });
on('drop', (event) => {
  if (!dragsFiles(event)) return;
  event.preventDefault(); // or the browser would leave the page for the file
  if (!document.body.hasAttribute('data-hc-drag')) return; // a panel may want it
  event.stopImmediatePropagation();
  [...event.dataTransfer.files].forEach(attachFile);
  dragging(false);
  if (!touch()) box().focus();
}, { capture: true });

// Whether there is something to send.
const markFilled = () => document.body.toggleAttribute('data-hc-filled', Boolean(box()?.value.trim() || find('#hc-tray .hc-files')));
on('input', (event) => {
  if (event.target === box()) markFilled();
});
onBusy.push(() => setTimeout(markFilled, 50)); // the box was emptied

function note(tray) {
  if (noted.files.length && !tray.dataset.known) return; // before it was asked for, nothing is there
  sessionStorage.setItem(COMPOSER, tray.dataset.state);
  const shown = [...tray.querySelectorAll('[data-file]')].map((chip) => chip.dataset.file); // those being read, too
  const held = JSON.parse(tray.dataset.state).files.map((file) => file.key);
  const keys = new Set([...underway, ...shown, ...held].map((key) => PASTED + key));
  for (const name of Object.keys(sessionStorage)) {
    if (name.startsWith(PASTED) && !keys.has(name)) sessionStorage.removeItem(name);
  }
}

when('#hc-tray', (place) => {
  const changed = () => {
    const tray = place.querySelector('.hc-tray');
    if (!tray) return;
    for (const key of underway) if (tray.querySelector(`[data-file="${key}"]`)) underway.delete(key);
    note(tray);
    setTimeout(markFilled, 0);
    sendEarly();
  };
  changes(place, changed, { childList: true, subtree: true, characterData: true, attributes: true });
});
// What was refused is under way no more, and the message that waited for it is not sent without it.
when('#hc-live', (live) => changes(live, () => {
  if (!live.querySelector('[role=alert]') || !reading()) return;
  underway.clear();
  for (const one of early.filter(({ act }) => act === 'hc_send')) early.splice(early.indexOf(one), 1);
  sendEarly();
}));

let restored = !noted.files.length;
onPlace.push(() => {
  if (restored) return;
  restored = true;
  const files = noted.files.map((file) => ({ ...file, pasted: sessionStorage.getItem(PASTED + file.key) ?? undefined }));
  trigger('hc_kept', { text: JSON.stringify(files) });
});
