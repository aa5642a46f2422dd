// Compare: the form that chooses both sides, and what is done with a result: a replay at true speed, a picture, a file.
// All of that stays in the browser.

// The form
const sidesOf = (form) => Object.fromEntries([...form.querySelectorAll('fieldset')].map((side) => [
  side.dataset.arm,
  Object.fromEntries([...side.querySelectorAll('[name]')].map(({ name, value }) => [name, value.trim()])),
]));
const PAIR = 'hc-pair'; // in the tab: it outlives a reload
const tellSides = (form) => {
  const text = JSON.stringify(sidesOf(form));
  sessionStorage.setItem(PAIR, text);
  trigger('hc_setup', { id: 0, text });
};

// The form as it was left; whether one of its choices is not there any more.
function fillSides(form, sides) {
  let lost = false;
  for (const side of form.querySelectorAll('fieldset')) {
    for (const field of side.querySelectorAll('[name]')) {
      const wanted = sides[side.dataset.arm]?.[field.name] ?? field.value;
      field.value = wanted;
      if (field.value === wanted) continue;
      lost = true;
      field.selectedIndex = 0;
    }
  }
  return lost;
}

let sidesFilled = false;
watch('value', () => {
  if (sidesFilled) return;
  sidesFilled = true;
  const noted = sessionStorage.getItem(PAIR);
  if (noted) when('#hc-setup form', (form) => {
    fillSides(form, JSON.parse(noted));
    tellSides(form);
  });
});
// The list of models may change: an update puts choices and what is unfolded back to how they came.
let setupOpen = false;
on('click', (event) => { if (event.target.closest('.hc-setup > summary')) setupOpen = !setupOpen; }, { capture: true });
when('#hc-pair', (pair) => changes(pair, () => {
  const form = pair.querySelector('form');
  const noted = sessionStorage.getItem(PAIR);
  if (!form) return;
  if (form.parentElement.open !== setupOpen) form.parentElement.open = setupOpen;
  if (noted && fillSides(form, JSON.parse(noted))) tellSides(form);
}, { childList: true, subtree: true, characterData: true, attributes: true, attributeFilter: ['value', 'open'] }));
on('change', (event) => {
  const form = event.target.closest('#hc-setup form');
  if (form) tellSides(form);
});
on('submit', (event) => { if (event.target.closest('#hc-setup form')) event.preventDefault(); });
acts.hc_setup_reset = ({ button }) => {
  const form = button.closest('form');
  form.reset();
  tellSides(form);
};

// Deleting asks first: nothing takes it back.
acts.hc_result_delete = ({ id }) => {
  const form = titled(id ? _('Delete this comparison?') : _('Delete all comparisons?'));
  const row = made('div', {});
  row.append(
    made('button', { type: 'button', textContent: _('Cancel'), onclick: () => dialog.close() }),
    made('button', { type: 'submit', textContent: _('Delete'), className: 'hc-primary' }),
  );
  form.append(row);
  form.onsubmit = () => trigger('hc_result_delete', { id });
  show(form);
};

// The replay: both texts stand there as they ended, and what was not written yet at a moment is made invisible. So nothing
// moves, and nothing that the server draws is touched.
let race = null;

function piecesOf(element) {
  const texts = [];
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  let length = 0;
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    texts.push({ node, from: length });
    length += node.data.length;
  }
  return { texts, length, blocks: [...element.querySelectorAll('*')].reverse() };
}

function hideFrom({ texts, blocks }, cut) {
  const at = texts.findLastIndex(({ from }) => from <= cut);
  const range = document.createRange();
  if (texts.length) {
    range.setStart(texts[at].node, Math.min(cut - texts[at].from, texts[at].node.data.length));
    range.setEndAfter(texts.at(-1).node);
  }
  for (const block of blocks) {
    const later = texts[at] && texts[at].node.compareDocumentPosition(block) & Node.DOCUMENT_POSITION_FOLLOWING;
    block.style.visibility = later && !block.contains(texts[at].node) ? 'hidden' : '';
  }
  return range;
}

function endRace() {
  if (!race) return;
  cancelAnimationFrame(race.frame);
  CSS.highlights?.delete('hc-later');
  for (const { text, counter, pieces } of race.sides) {
    for (const block of pieces.blocks) block.style.visibility = '';
    text.style.visibility = '';
    counter.hidden = true;
  }
  race.result.classList.remove('hc-racing');
  race.result.querySelector('.hc-now').setAttribute('visibility', 'hidden');
  race.button.textContent = race.label;
  race = null;
}

acts.hc_race = ({ button }) => {
  const again = race?.button !== button;
  endRace();
  if (!again) return;
  const result = button.closest('.hc-result');
  const line = result.querySelector('.hc-now');
  const sides = Object.entries(JSON.parse(result.dataset.moments)).map(([arm, changes]) => {
    const side = result.querySelector(`.hc-side[data-arm=${arm}]`);
    const text = side.querySelector('.hc-text');
    const sum = [0, 0, 0];
    const moments = changes.map((change) => change.map((more, at) => (sum[at] += more)));
    return { text, counter: side.querySelector('.hc-race'), moments, pieces: piecesOf(text), began: moments.find(([, tokens]) => tokens)?.[0] || 0 };
  });
  race = { button, result, sides, label: button.textContent, frame: 0 };
  button.textContent = _('Stop the replay');
  result.classList.add('hc-racing');
  const began = performance.now();
  const draw = () => {
    if (!result.isConnected) return void endRace();
    const ms = performance.now() - began;
    const later = [];
    let running = false;
    for (const { text, counter, moments, pieces, began: first } of sides) {
      const at = moments.findLastIndex(([when]) => when <= ms);
      const [, tokens, characters] = moments[at] || [0, 0, 0];
      const whole = moments.at(-1)[2] || 1;
      const done = at === moments.length - 1;
      running ||= !done;
      text.style.visibility = tokens ? '' : 'hidden';
      if (tokens && !done) later.push(hideFrom(pieces, Math.round((characters / whole) * pieces.length)));
      else if (done) for (const block of pieces.blocks) block.style.visibility = '';
      const seconds = (Math.min(ms, moments.at(-1)[0]) - first) / 1000;
      counter.hidden = false;
      counter.textContent = tokens
        ? [
          _('{tokens} tokens', { tokens }),
          ...(seconds > 0.2 ? [_('{speed} a second', { speed: (tokens / seconds).toFixed(1) })] : []),
          ...(done ? [_('done')] : []),
        ].join(', ')
        : _('Reading the prompt…');
    }
    if (later.length) CSS.highlights?.set('hc-later', new Highlight(...later));
    else CSS.highlights?.delete('hc-later');
    line.setAttribute('transform', `translate(${Math.min(100, ms / 10 / Number(line.dataset.seconds))} 0)`);
    line.setAttribute('visibility', 'visible');
    if (running) race.frame = requestAnimationFrame(draw);
    else endRace();
  };
  draw();
};

// Files
function save(name, blob) {
  const link = made('a', { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
const nameOf = (result) => `hierchat-comparison${Number(result.dataset.id) ? `-${result.dataset.id}` : ''}`;

acts.hc_result_save = ({ button }) => {
  const result = button.closest('.hc-result');
  save(`${nameOf(result)}.json`, new Blob([result.dataset.export], { type: 'application/json' }));
};

function tick(label, checked) {
  const box = made('input', { type: 'checkbox', checked });
  const row = made('label', { className: 'hc-tick' });
  row.append(box, label);
  return { box, row };
}

acts.hc_picture = ({ button }) => {
  const result = button.closest('.hc-result');
  const whole = new DOMParser().parseFromString(result.dataset.picture, 'image/svg+xml').documentElement;
  const question = tick(_('Show the question'), true);
  const dark = tick(_('Dark'), document.body.classList.contains('dark'));
  const image = made('img', { alt: _('The picture as it will be saved'), className: 'hc-picture' });

  const drawing = () => {
    const svg = whole.cloneNode(true);
    const above = question.box.checked ? 0 : Number(svg.dataset.question);
    const height = svg.getAttribute('height') - above;
    if (above) svg.querySelector('.question').remove();
    svg.setAttribute('viewBox', `0 ${above} ${svg.getAttribute('width')} ${height}`);
    svg.setAttribute('height', height);
    svg.setAttribute('class', dark.box.checked ? 'dark' : '');
    svg.removeAttribute('data-question');
    return new XMLSerializer().serializeToString(svg);
  };
  const blob = () => new Blob([drawing()], { type: 'image/svg+xml' });
  const preview = () => {
    URL.revokeObjectURL(image.src);
    image.src = URL.createObjectURL(blob());
  };
  question.box.onchange = preview;
  dark.box.onchange = preview;
  preview();

  const png = async () => {
    await image.decode();
    const canvas = made('canvas', { width: image.naturalWidth, height: image.naturalHeight });
    canvas.getContext('2d').drawImage(image, 0, 0);
    canvas.toBlob((drawn) => save(`${nameOf(result)}.png`, drawn), 'image/png');
  };
  const row = made('div', {});
  row.append(
    made('button', { type: 'submit', textContent: _('Close') }),
    made('button', { type: 'button', textContent: _('Save as SVG'), onclick: () => save(`${nameOf(result)}.svg`, blob()) }),
    made('button', { type: 'button', textContent: _('Save as PNG'), className: 'hc-primary', onclick: png }),
  );
  const form = titled(_('Picture of this comparison'), { className: 'hc-picture-form' });
  form.append(image, question.row, dark.row, row);
  show(form);
};
