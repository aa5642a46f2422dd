// Chats in: files are sent one after the other as they are, then the server takes in what they hold. Chats out: what the
// server has written is fetched at once.
let sending = null; // the request in progress

function upload(file, number, files, tell = tellSending) {
  return new Promise((resolve, reject) => {
    sending = new XMLHttpRequest();
    const root = window.gradio_config.root || '';
    sending.open('POST', `${root}/transfer/in?name=${encodeURIComponent(file.name)}`);
    const megabytes = (bytes) => (bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0);
    sending.upload.onprogress = ({ loaded }) => {
      const said = { name: file.name, number: number + 1, all: files.length, done: megabytes(loaded), size: megabytes(file.size) };
      tell(files.length > 1
        ? _('Sending {name} ({number} of {all}): {done} of {size} MB', said) : _('Sending {name}: {done} of {size} MB', said));
    };
    sending.onload = () => (sending.status === 200 ? resolve(JSON.parse(sending.responseText).ticket) : reject(new Error(sending.responseText)));
    sending.onerror = () => reject(new Error(_('The connection was lost. Choose the file again.')));
    sending.send(file);
  });
}

function tellSending(sentence) {
  const line = find('#hc-transfer .hc-sending');
  line.textContent = sentence;
  line.hidden = !sentence;
}

async function bringIn(files) {
  if (sending || !files.length) return;
  const tickets = [];
  try {
    for (const [number, file] of files.entries()) tickets.push(await upload(file, number, files));
    tellSending('');
  } catch (error) {
    tellSending(error.message);
  }
  sending = null;
  if (tickets.length) trigger('hc_import', { tickets });
}

acts.hc_choose = () => {
  const field = made('input', { type: 'file', multiple: true, accept: '.json,.zip,application/json,application/zip' });
  field.onchange = () => bringIn([...field.files]);
  field.click();
};
acts.hc_export_all = ({ text }) => trigger('hc_export', { id: 0, text });

const dropping = (event) => event.dataTransfer?.types.includes('Files') && event.target.closest?.('.hc-drop');
on('dragover', (event) => {
  const place = dropping(event);
  find('.hc-drop')?.classList.toggle('hc-over', Boolean(place));
  if (place) event.preventDefault();
});
on('drop', (event) => {
  find('.hc-drop')?.classList.remove('hc-over');
  if (!dropping(event)) return;
  event.preventDefault();
  bringIn([...event.dataTransfer.files]);
});

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
