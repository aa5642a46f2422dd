// Chats in: files are sent one after the other as they are, then the server takes in what they hold. Chats out: what the
// server has written is fetched at once.
let sending = false;

// Sends a file as it is, for what the server answers; `tell` hears how many bytes have gone.
function sendFile(method, path, file, tell) {
  sending = true;
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open(method, `${window.gradio_config.root || ''}/${path}`);
    request.upload.onprogress = ({ loaded }) => tell(loaded);
    request.onload = () => (request.status < 300 ? resolve(request.responseText)
      : reject(new Error(request.responseText || _('{name} could not be copied.', file))));
    request.onerror = () => reject(new Error(_('The connection was lost. Choose the file again.')));
    request.send(file);
  }).finally(() => { sending = false; });
}

// The tickets of files that were sent, one after the other.
async function upload(files, tell) {
  const tickets = [];
  for (const [number, file] of files.entries()) {
    const megabytes = (bytes) => (bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0);
    const answer = await sendFile('POST', `transfer/in?name=${encodeURIComponent(file.name)}`, file, (loaded) => {
      const said = { name: file.name, number: number + 1, all: files.length, done: megabytes(loaded), size: megabytes(file.size) };
      tell(files.length > 1
        ? _('Sending {name} ({number} of {all}): {done} of {size} MB', said) : _('Sending {name}: {done} of {size} MB', said));
    });
    tickets.push(JSON.parse(answer).ticket);
  }
  tell('');
  return tickets;
}

function tellSending(sentence) {
  const line = find('#hc-transfer .hc-sending');
  line.textContent = sentence;
  line.hidden = !sentence;
}

async function bringIn(files) {
  if (sending || !files.length) return;
  try {
    trigger('hc_import', { tickets: await upload(files, tellSending) });
  } catch (error) {
    tellSending(error.message);
  }
}

acts.hc_choose = () => chooseFiles(bringIn, '.json,.zip,application/json,application/zip');
dropsOn('.hc-drop', (_place, { files }) => bringIn([...files]));
acts.hc_export_all = ({ text }) => trigger('hc_export', { id: 0, text });

when('#hc-out', (out) => {
  let last = null;
  changes(out, () => {
    const link = out.querySelector('a');
    const href = link?.getAttribute('href');
    if (!href || link.dataset.key !== KEY || href === last) return;
    last = href;
    const go = made('a', { href: `${window.gradio_config.root || ''}/${href}`, download: '' });
    document.body.append(go);
    go.click();
    go.remove();
  }, { childList: true, subtree: true, attributes: true, attributeFilter: ['href'] });
});
