// What a thing says of itself (data-said) while the mouse or the focus is on it: a run of a reply's words, a figure.
// The runs of a reply are one tab stop with arrow keys. A click on one that came from another message goes there.
const TELLS = '[data-said], .hc-run';

function tipBox() {
  let shown = find('#hc-tip');
  if (!shown) {
    shown = document.createElement('div');
    shown.id = 'hc-tip';
    shown.popover = 'manual';
    shown.setAttribute('role', 'tooltip');
    document.body.append(shown);
  }
  return shown;
}

// Only the first piece of a run carries what is said; markup cuts a run into several.
const runOf = (piece) => (piece.matches('.hc-run')
  ? piece.closest('.hc-text').querySelector(`[data-run="${piece.dataset.run}"]`) : piece);

function showTip(piece, x) {
  const from = runOf(piece);
  const shown = tipBox();
  shown.textContent = from.dataset.said;
  from.ariaDescription = from.dataset.said;
  shown.showPopover();
  // Beside the line of the text that the mouse is on, within the window.
  const lines = [...piece.getClientRects()];
  const line = lines.find((one) => x >= one.left && x <= one.right) || lines[0];
  if (!line) return hideTip();
  const [width, height] = [shown.offsetWidth, shown.offsetHeight];
  const left = Math.max(8, Math.min(line.left, window.innerWidth - width - 8));
  const top = line.top - height - 6;
  shown.style.left = `${left}px`;
  shown.style.top = `${top < 8 ? line.bottom + 6 : top}px`;
  shown.dataset.run = from.dataset.run ?? '';
  if (from.dataset.run) for (const one of from.closest('.hc-text').querySelectorAll('.hc-run')) one.classList.toggle('hc-told', one.dataset.run === from.dataset.run);
}

function hideTip() {
  if (find('#hc-tip:popover-open')) tipBox().hidePopover();
  for (const one of document.querySelectorAll('.hc-told')) one.classList.remove('hc-told');
}

on('pointerover', (event) => {
  const piece = event.target.closest?.(TELLS);
  if (piece) showTip(piece, event.clientX);
  else hideTip();
});
on('focusin', (event) => {
  if (event.target.matches(TELLS) && event.target.matches(':focus-visible')) showTip(event.target, -1);
  else if (!event.target.matches(TELLS)) hideTip();
});
on('focusout', hideTip);
// The text may scroll under the mouse, or by the keyboard.
on('scroll', () => {
  const piece = find('#hc-tip:popover-open') && find('.hc-run:hover, [data-said]:hover, .hc-run:focus, [data-said]:focus');
  if (piece) showTip(piece, -1);
  else hideTip();
}, { capture: true, passive: true });
on('keydown', (event) => { if (event.key === 'Escape') hideTip(); }, { capture: true });

on('keydown', (event) => {
  const run = event.target.closest?.('.hc-run');
  if (!run || event.ctrlKey || event.metaKey || event.altKey) return;
  const runs = [...run.closest('.hc-text').querySelectorAll('.hc-run[data-said]')];
  const at = runs.indexOf(run);
  const steps = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: runs.length - 1 };
  if (event.key === 'Enter' && run.dataset.act) run.click();
  else if (!(event.key in steps)) return;
  event.preventDefault();
  const next = runs[steps[event.key]];
  if (!next) return;
  run.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
});

// A finger tells first and goes at the second touch; what is selected with the mouse goes nowhere.
let touched = null;
acts.hc_origin = ({ button, id, text }) => {
  if (!window.getSelection().isCollapsed) return;
  if (touch() && touched !== button) {
    touched = button;
    return;
  }
  hideTip();
  const { message, phrase } = JSON.parse(text);
  goToChat('hc_open', id, { text: message });
  lookFor(id, message, phrase);
};
// A click on any piece of a run is one on its first.
on('click', (event) => {
  const piece = event.target.closest('.hc-run:not([data-said])');
  const run = piece && runOf(piece);
  if (run?.dataset.act && run.dataset.key === KEY) run.click();
});
