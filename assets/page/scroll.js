// What is written is followed while one is at its end. Whoever scrolls away keeps the place; a button leads back.
// `following` says so for the chat and for the comparison, each of which scrolls by itself.
const NEAR = 16; // pixels from the end that still count as the end on the way down
const scrollers = [];

function scroller(element, end) {
  const self = { element, following: true, set: 0, last: { top: 0, height: 0, view: 0 } };
  const seen = () => {
    self.last = { top: element.scrollTop, height: element.scrollHeight, view: element.clientHeight };
    const away = scrollers.some((one) => !one.following && Math.abs(one.end() - one.element.scrollTop) > NEAR);
    const button = find('#hc-end button');
    if (button.hidden === away) button.hidden = !away; // the browser computes its style anew even for the same value
  };
  self.end = end;
  self.settle = () => {
    // The browser's own anchoring holds the place of whoever is not at the end.
    element.style.overflowAnchor = self.following ? 'none' : '';
    if (self.following) {
      element.scrollTop = end();
      self.set = element.scrollTop;
    }
    seen();
  };
  element.addEventListener('scroll', () => {
    const { top, height, view } = self.last;
    const now = element.scrollTop;
    const squeezed = element.scrollHeight < height || element.clientHeight > view; // then the browser moves it up
    if (Math.abs(now - self.set) >= 1 && !(now < top && squeezed)) {
      self.following = Math.abs(end() - now) <= (now > top ? NEAR : 1);
      element.style.overflowAnchor = self.following ? 'none' : '';
      self.set = -1;
    }
    seen();
  }, { passive: true });
  const sizes = new ResizeObserver(self.settle);
  sizes.observe(element);
  for (const child of element.children) sizes.observe(child);
  scrollers.push(self);
}

when('#hc-growing', () => {
  const chat = find('#hc-chat');
  scroller(chat, () => chat.scrollHeight - chat.clientHeight);
});

// Of the columns, the end of what is being written counts: they stand below each other on a narrow screen.
when('#hc-second', () => {
  const versus = find('#hc-versus');
  const changed = new Map();
  for (const column of versus.querySelectorAll('.hc-column')) changes(column, () => changed.set(column, performance.now()));
  scroller(versus, () => {
    const newest = Math.max(...changed.values());
    const ends = [...changed].filter(([, at]) => newest - at < 500)
      .map(([column]) => column.getBoundingClientRect().bottom);
    const bottom = Math.max(0, ...ends) - versus.getBoundingClientRect().top + versus.scrollTop + 24;
    return Math.max(0, Math.min(bottom, versus.scrollHeight) - versus.clientHeight);
  });
});

function follow() {
  for (const one of scrollers) {
    one.following = true;
    one.settle();
  }
}

// What opens under the mouse stays under it.
function stay() {
  for (const one of scrollers) one.following = false;
}

onBusy.push((writing, begins) => { if (begins) follow(); });

// Earlier messages come in above what one reads, which stays where it is.
let below = null; // pixels from the top of the window to the end
acts.hc_earlier = () => {
  const chat = find('#hc-chat');
  stay();
  below = chat.scrollHeight - chat.scrollTop;
  trigger('hc_earlier', {});
};
when('#hc-thread', (thread) => changes(thread, () => {
  if (below === null) return;
  const chat = find('#hc-chat');
  chat.scrollTop = chat.scrollHeight - below;
  below = null;
}));
acts.hc_latest = () => {
  follow();
  trigger('hc_latest', {});
};

acts.hc_end = () => {
  follow();
  // The button goes; whoever pressed it reads on.
  scrollers.find((one) => one.element.checkVisibility())?.element.focus({ preventScroll: true });
};

// A keyboard on the screen takes its part of the window.
const viewport = find('meta[name=viewport]');
if (viewport && !viewport.content.includes('interactive-widget')) viewport.content += ', interactive-widget=resizes-content';
window.visualViewport?.addEventListener('resize', () => {
  const { scale, height } = window.visualViewport;
  if (scale === 1) document.documentElement.style.setProperty('--hc-height', `${height}px`);
}, { signal: window.hcEnd.signal });
