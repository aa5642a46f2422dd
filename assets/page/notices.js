// Notices that were closed stay closed in this browser. The sheet of style hides them however often they are drawn.
const CLOSED = 'hc-closed';
const closed = () => (localStorage.getItem(CLOSED) || '').split(' ').filter(Boolean);

find('#hc-closed')?.remove();
const hiding = made('style', { id: 'hc-closed' });
document.head.append(hiding);
const hideClosed = () => {
  hiding.textContent = closed().map((name) => `[data-notice="${CSS.escape(name)}"] { display: none !important; }`).join('\n');
};
hideClosed();

acts.hc_close = ({ text }) => {
  localStorage.setItem(CLOSED, [...new Set([...closed(), text])].join(' '));
  hideClosed();
  if (!touch()) box().focus({ preventScroll: true });
};
acts.hc_dismiss = () => {
  trigger('hc_dismiss', {});
  if (!touch()) box()?.focus({ preventScroll: true });
};
