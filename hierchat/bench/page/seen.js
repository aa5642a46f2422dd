// What `bench page` measures inside the page. Times are milliseconds.
window.hcBench = (() => {
  const shifts = [];
  const long = [];
  const observe = (type, then) => new PerformanceObserver((list) => list.getEntries().forEach(then)).observe({ type, buffered: true });
  observe('layout-shift', (entry) => shifts.push(entry));
  observe('longtask', (entry) => long.push(entry));

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

  // From now on; what it returns, as far as it has come.
  let from = 0;
  const begin = () => { from = performance.now(); };
  function since() {
    const after = (entries) => entries.filter((entry) => entry.startTime >= from);
    const moved = after(shifts).map(({ value, startTime, sources }) => ({
      value,
      at_ms: startTime - from,
      moved: sources.map(({ node }) => node && (node.id || node.className || node.nodeName)).map(String),
    }));
    const tasks = after(long).map(({ duration }) => duration);
    return {
      layout_shift: moved.reduce((sum, { value }) => sum + value, 0),
      shifts: moved,
      longest_task_ms: Math.max(0, ...tasks),
    };
  }

  return { opened, opensChat, begin, since };
})();
