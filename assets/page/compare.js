// Compare: the form that chooses both sides.

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
