// Keys of the whole page, and where the focus goes when a button that was pressed makes way for another.
const box = () => find('#hc-box textarea');
const composing = (event) => event.isComposing || event.keyCode === 229; // Enter that only ends an input method's word

on('keydown', (event) => {
  if (event.key !== 'Escape' || event.defaultPrevented || composing(event)) return;
  if (dialog.open || find('[role=listbox], #hc-menu:popover-open')) return; // they close themselves
  if (narrow() && unfolded()) leaveSidebar();
  else if (busy()) find('#hc-stop').click();
});

const PAGES = { PageUp: -0.9, PageDown: 0.9, Home: -Infinity, End: Infinity };
on('keydown', (event) => {
  const idle = event.target === document.body || event.target === box();
  const far = event.key === 'Home' || event.key === 'End';
  if (!(event.key in PAGES) || !idle || (far && event.target === box())) return;
  if (event.target === box() && box().scrollHeight > box().clientHeight + 24) return; // it has pages of its own
  const shown = scrollers.find((one) => one.element.checkVisibility())?.element;
  if (!shown || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
  event.preventDefault();
  if (far) shown.scrollTop = event.key === 'Home' ? 0 : shown.scrollHeight;
  else shown.scrollTop += PAGES[event.key] * shown.clientHeight;
});

// The text goes as it is now, without that of messages before it which the server has not taken yet.
function send(event) {
  event.preventDefault();
  event.stopImmediatePropagation();
  if (composing(event) || document.body.dataset.hcTo === 'panel') return; // where there is no box
  const before = underWay();
  const text = before.reduce(without, box().value);
  if (before.length && !text.trim()) return; // pressed twice
  trigger('hc_send', { text }, { chat: chatOfBox, text });
  if (text.trim()) follow();
}
on('keypress', (event) => {
  if (event.target === box() && event.key === 'Enter' && !event.shiftKey) send(event);
}, { capture: true });
on('click', (event) => {
  if (event.target.closest('#hc-send')) send(event);
}, { capture: true });

// Send and Stop take turns. The focus goes to the box; on a touch screen that would call the keyboard.
const lost = () => document.activeElement === document.body || !document.activeElement.checkVisibility();
function home() {
  if (!lost() || !window.getSelection().isCollapsed) return;
  if (touch()) find(busy() ? '#hc-stop' : '#hc-send').focus({ preventScroll: true });
  else box().focus({ preventScroll: true });
}
on('click', (event) => {
  if (!touch() && event.target.closest('#hc-send, #hc-stop')) box().focus({ preventScroll: true });
});
onBusy.push(() => setTimeout(home, 0));
// On a touch screen a button does what Enter does beside a reply that is being written.
acts.hc_queue = () => box().dispatchEvent(new KeyboardEvent('keypress', { key: 'Enter', bubbles: true, cancelable: true }));
when('#hc-box textarea', () => { if (!touch()) box().focus(); });
