// Compare: the form that chooses both sides.
function tellSides(form) {
  const sides = [...form.querySelectorAll('fieldset')].map((side) => [
    side.dataset.arm,
    Object.fromEntries([...side.querySelectorAll('[name]')].map(({ name, value }) => [name, value])),
  ]);
  trigger('hc_setup', { id: 0, text: JSON.stringify(Object.fromEntries(sides)) });
}

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
