// Keys that do what a button does, from anywhere on the page; and the dialog that tells them all.
const MAC = /Mac|iPhone|iPad/.test(navigator.platform);
const COMMAND = MAC ? '⌘' : 'Ctrl';
const ALT = MAC ? '⌥' : 'Alt';
const SHORTCUTS = [
  [_('Send the message'), ['Enter']],
  [_('New line'), ['Shift', 'Enter']],
  [_('Edit your last question, from the empty box'), ['↑']],
  [_('Stop the reply'), ['Escape']],
  [_('New chat'), [ALT, 'Shift', 'O']],
  [_('Search the chats'), [COMMAND, 'K']],
  [_('Show or hide the list of chats'), [ALT, 'Shift', 'S']],
  [_('In the list: another chat'), ['↑', '↓']],
  [_('In the list: rename'), ['F2']],
  [_('In the list: delete'), ['Delete']],
  [_('Undo the deletion'), [COMMAND, 'Z']],
  [_('To the beginning or the end of the chat'), ['Home', 'End']],
  [_('These shortcuts'), ['?']],
];

function help() {
  const list = made('dl', {});
  for (const [does, keys] of SHORTCUTS) {
    const shown = made('dd', {});
    shown.append(...keys.map((key) => made('kbd', { textContent: key })));
    list.append(made('dt', { textContent: does }), shown);
  }
  const form = formOf({ title: _('Keyboard shortcuts'), leave: _('Close'), className: 'hc-help' }, list);
  show(form);
  form.querySelector('.hc-leave').focus();
}
acts.hc_help = help;

function search(tries = 20) {
  const field = find('#hc-search input, #hc-search textarea');
  if (!unfolded()) toggleSidebar();
  field.focus();
  field.select();
  // What is folded takes no focus until it is unfolded.
  if (document.activeElement !== field && tries) setTimeout(() => { if (unfolded()) search(tries - 1); }, 50);
}

function newChat() {
  find('#hc-new').click();
  leaveSidebar();
  box().focus();
}

function editLast() {
  [...document.querySelectorAll('#hc-thread [data-act=hc_edit]')].at(-1)?.click();
}

const typing = (event) => event.composedPath()[0].matches?.('input:not([type=checkbox], [type=range]), textarea');
// By the place of the key: with Alt, some systems make another letter of it.
function shortcut(event) {
  const command = (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey;
  const bare = !event.ctrlKey && !event.metaKey && !event.altKey;
  if (event.altKey && event.shiftKey && !event.ctrlKey && !event.metaKey) return { KeyO: newChat, KeyS: toggleSidebar }[event.code];
  if (command && event.key === 'k') return () => search();
  if (command && event.key === 'z' && !typing(event) && undoButton()) return () => undoButton().click();
  if (bare && event.key === '?' && !typing(event)) return help;
  if (bare && !event.shiftKey && event.key === 'ArrowUp' && event.target === box() && !box().value) return editLast;
  return null;
}

on('keydown', (event) => {
  if (event.defaultPrevented || event.repeat || composing(event) || dialog.open) return;
  const does = shortcut(event);
  if (!does) return;
  event.preventDefault();
  does();
});
