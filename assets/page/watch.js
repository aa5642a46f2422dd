// What the other parts wait for: that something is there, that it changed, that a reply begins or ends.
const find = (selector) => document.querySelector(selector);

function changes(node, then, options = { childList: true, subtree: true, characterData: true }) {
  const observer = new MutationObserver(then);
  observer.observe(node, options);
  window.hcEnd.signal.addEventListener('abort', () => observer.disconnect());
}

// Calls back once `selector` is on the page: Gradio builds it piece by piece.
function when(selector, then) {
  if (find(selector)) return void then(find(selector));
  const observer = new MutationObserver(() => {
    if (!find(selector)) return;
    observer.disconnect();
    then(find(selector));
  });
  observer.observe(document.body, { childList: true, subtree: true });
}

const narrow = () => window.innerWidth <= 768;
const touch = () => window.matchMedia('(hover: none)').matches;

// Whether the screen shows a reply that is being written. `begins`: not one that was being written before, elsewhere.
const busy = () => document.body.hasAttribute('data-hc-busy');
const onBusy = [];
const tellBusy = (is, begins) => onBusy.forEach((then) => then(is, begins));
onWord.begun = (_count, before) => { // of a short one, neither beginning nor end may have been seen
  if (shows.busy || before === undefined) return;
  if (!busy()) tellBusy(true, true);
  tellBusy(false, false);
};
onWord.busy = (number, before) => {
  if (busy() !== Boolean(number)) {
    document.body.toggleAttribute('data-hc-busy');
    tellBusy(busy(), busy());
  } else if (before) {
    tellBusy(true, true);
  }
};
