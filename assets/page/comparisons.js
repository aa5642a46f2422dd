// Compare: the form that chooses both sides, and a result as a file, which stays in the browser.

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
onPlace.push(() => {
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
