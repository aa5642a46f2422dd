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

// A reply is being written while Stop can be pressed. Gradio draws at once what comes close together, so that of a short
// reply the button may never be seen: the count of those that began stands there too.
const busy = () => Boolean(find('#hc-stop')?.checkVisibility());
const onBusy = [];
when('#hc-stop', (stop) => {
  const lastBegun = () => /hc-begun-(\d+)/.exec(stop.className)?.[1] ?? '0';
  let was = busy();
  let begun = lastBegun();
  let told = '0';
  const tell = () => {
    was = !was;
    const begins = was && begun !== told; // an older answer may hide Stop for a moment
    if (was) told = begun;
    onBusy.forEach((then) => then(was, begins));
  };
  changes(stop, () => {
    const missed = !was && !busy() && begun !== lastBegun();
    begun = lastBegun();
    if (missed) tell();
    if (busy() !== was) tell();
  }, { attributes: true });
});
