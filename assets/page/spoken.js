// What a screen reader needs beyond the words: landmarks, names, and a reply that is told once.
const LANDMARKS = {
  '#hc-sidebar': ['complementary', _('Chats and settings')],
  '#hc-main': ['main', ''],
  '#hc-chat': ['region', _('Conversation')],
  '#hc-versus': ['region', _('Comparison')],
  '#hc-composer': ['form', _('Message')],
  '#hc-drawer': ['region', _('Chat settings')],
};
for (const [selector, [role, name]] of Object.entries(LANDMARKS)) {
  when(selector, (element) => {
    element.setAttribute('role', role);
    if (name) element.setAttribute('aria-label', name);
  });
}
for (const list of ['#hc-model', '#hc-writer', '#hc-preset']) when(`${list} svg`, (arrow) => arrow.setAttribute('aria-hidden', 'true'));
// What is typed runs in the direction of its words.
for (const field of ['#hc-box textarea', '#hc-system textarea', '#hc-search input']) when(field, (element) => { element.dir = 'auto'; });
// Gradio's own landmark holds the sidebar, too. A landmark may have no other role, so a plain element takes its place.
when('#hc-main', (main) => {
  const theirs = main.closest('main');
  if (!theirs) return;
  const plain = made('div', { className: theirs.className });
  plain.append(...theirs.childNodes);
  theirs.replaceWith(plain);
});

find('#hc-said')?.remove();
const said = made('div', { id: 'hc-said', className: 'hc-spoken', role: 'status' });
document.body.append(said);

const feet = () => [...document.querySelectorAll('#hc-thread .hc-foot')].map((foot) => foot.dataset.message);
const MOST_SPOKEN = 20_000; // characters: half an hour of speech, and no long wait for the page
let told = [];
let writingIn = null; // the chat; a new one gets its id a moment later
onBusy.push((writing) => {
  if (writing) {
    told = feet();
    writingIn = place();
    said.textContent = _('A reply is being written.');
    return;
  }
  setTimeout(() => {
    const last = feet().at(-1);
    const text = find(`#hc-thread .hc-foot[data-message="${last}"]`)?.parentElement.querySelector('.hc-text');
    const here = place() === writingIn; // and not another chat, in which nothing is being written
    said.textContent = here && text && !told.includes(last) ? text.textContent.slice(0, MOST_SPOKEN) : '';
  }, 100);
});
onPlace.push(() => { if (busy() && !Number(writingIn)) writingIn = place(); });
