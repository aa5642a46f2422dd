// What `benchmarks page` measures inside the page. Times are milliseconds.
window.hcBench = (() => {
  const shifts = [];
  const long = [];
  const observe = (type, then) => new PerformanceObserver((list) => list.getEntries().forEach(then)).observe({ type, buffered: true });
  observe('layout-shift', ({ value, startTime, sources }) => {
    const outside = sources.some((source) => !isExpected(source));
    shifts.push({ value, startTime, outside, moved: sources.map(said) });
  });
  observe('longtask', (entry) => long.push(entry));

  // The browser tells of nodes. Those of a growing reply take other words at each step, so they move although no word does.
  // And the list of chats gains a row.
  function isExpected({ node, previousRect, currentRect }) {
    const element = node?.nodeType === Node.TEXT_NODE ? node.parentElement : node;
    // A reply that has ended stands where it grew, in another place of the tree: it was not there before.
    if (element) return Boolean(element.closest('#hc-growing, #hc-list')) || (!previousRect.width && Boolean(element.closest('#hc-thread')));
    return ['#hc-chat', '#hc-list'].some((part) => {
      const place = document.querySelector(part).getBoundingClientRect();
      return [previousRect, currentRect].every(({ left, right, top, bottom, width }) => !width // it was not there
        || (left >= place.left && right <= place.right && top >= place.top - 1 && bottom <= place.bottom + 1));
    });
  }
  const named = (node) => (node ? node.id || node.className || node.nodeName : 'gone since');
  const placed = ({ x, y, width, height }) => `${Math.round(width)} x ${Math.round(height)} at ${Math.round(x)}, ${Math.round(y)}`;
  const said = ({ node, previousRect, currentRect }) => `${named(node)}: ${placed(previousRect)} to ${placed(currentRect)}`;

  // Resolves once `there` holds, looked at before each frame, and that frame was painted.
  const painted = (there) => new Promise((done) => {
    const look = () => (there() ? requestAnimationFrame(() => setTimeout(() => done(performance.now()))) : requestAnimationFrame(look));
    look();
  });
  const visible = (selector) => document.querySelector(selector)?.checkVisibility();

  const filled = () => visible('#hc-box textarea') || visible('.hc-panel:not(.hc-off)');
  const usable = painted(() => visible('#hc-list nav') && visible('#hc-title h1') && filled());

  async function opened() {
    const at = await usable;
    const paint = performance.getEntriesByName('first-contentful-paint')[0];
    return { first_paint_ms: paint?.startTime ?? null, usable_ms: at };
  }

  async function opensChat([title, messages]) {
    const row = [...document.querySelectorAll('#hc-list .hc-title')].find((one) => one.textContent === title);
    const began = performance.now();
    row.click();
    const there = () => document.querySelector('#hc-title h1').textContent === title
      && document.querySelectorAll('#hc-thread .hc-turn').length === messages;
    return await painted(there) - began;
  }

  // [until the click shows where it leads, until the view stands there as it is now]
  async function opensView(name) {
    const marked = (how) => document.querySelector(`.hc-links [data-text="${name}"]`)?.matches(how);
    const began = performance.now();
    document.querySelector(`.hc-links [data-text="${name}"]`).click();
    const answered = await painted(() => marked('[data-going], [aria-current]'));
    const there = () => marked('[aria-current]') && !document.body.dataset.hcTo && visible('.hc-panel:not(.hc-off)');
    return [answered - began, await painted(there) - began];
  }

  // From now on; what it returns, as far as it has come.
  let from = 0;
  const begin = () => { from = performance.now(); };
  function since() {
    const after = (entries) => entries.filter((entry) => entry.startTime >= from);
    const sum = (moves) => moves.reduce((all, { value }) => all + value, 0);
    const moves = after(shifts);
    return {
      layout_shift: sum(moves.filter(({ outside }) => outside)),
      layout_shift_expected: sum(moves.filter(({ outside }) => !outside)),
      shifts: moves.map(({ value, startTime, outside, moved }) => ({ at_ms: Math.round(startTime - from), value, outside, moved })),
      longest_task_ms: Math.max(0, ...after(long).map(({ duration }) => duration)),
    };
  }

  return { opened, opensChat, opensView, begin, since };
})();
