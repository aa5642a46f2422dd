// The menu of a chat, or a project, in the list. It stands outside of the list, which updates change; Escape and a click elsewhere close it.
find('#hc-menu')?.remove();
const menu = made('div', { id: 'hc-menu', popover: 'auto', role: 'menu' });
document.body.append(menu);
const entries = () => [...menu.children];

function entry(label, key, then) {
  const item = made('button', { type: 'button', role: 'menuitem', tabIndex: -1 });
  item.append(made('span', { textContent: label }));
  if (key) {
    item.append(made('kbd', { textContent: key, ariaHidden: 'true' }));
    item.setAttribute('aria-keyshortcuts', key);
  }
  item.onclick = () => {
    menu.hidePopover();
    then();
  };
  return item;
}

acts.hc_menu = ({ button, id }) => {
  const title = button.closest('li').querySelector('.hc-title');
  const { pinned, archived } = button.dataset;
  openMenu(button, [
    entry(_('Rename'), 'F2', () => rename(title)),
    ...(archived ? [] : [entry(pinned ? _('Unpin') : _('Pin'), '', () => numbered('hc_pin', { id, on: !pinned }))]),
    entry(archived ? _('Unarchive') : _('Archive'), '', () => numbered('hc_archive', { id, on: !archived })),
    entry(_('Move to a project'), '', () => moveChat(id, title.textContent, Number(button.dataset.project || 0))),
    entry(_('Export as Markdown'), '', () => trigger('hc_export', { id, text: 'markdown' })),
    entry(_('Export as JSON'), '', () => trigger('hc_export', { id, text: 'json' })),
    entry(_('Delete'), 'Delete', () => remove(title)),
  ]);
};

function openMenu(button, list) {
  menu.setAttribute('aria-label', button.getAttribute('aria-label'));
  menu.replaceChildren(...list);
  menu.showPopover();
  const at = button.getBoundingClientRect();
  const { width, height } = menu.getBoundingClientRect();
  menu.style.left = `${Math.max(8, Math.min(at.left, window.innerWidth - width - 8))}px`;
  menu.style.top = `${at.bottom + 4 + height > window.innerHeight ? at.top - height - 4 : at.bottom + 4}px`;
  entries()[0].focus();
}

menu.addEventListener('keydown', (event) => {
  const all = entries();
  const at = all.indexOf(document.activeElement);
  const to = {
    ArrowDown: all[(at + 1) % all.length], ArrowUp: all.at(at - 1), Home: all[0], End: all.at(-1),
  }[event.key];
  if (event.key === 'Tab') menu.hidePopover();
  if (!to) return;
  event.preventDefault();
  to.focus();
});

// A list that scrolls away below it would leave it pointing at another chat.
on('scroll', (event) => { if (event.target.id === 'hc-list' && menu.matches(':popover-open')) menu.hidePopover(); }, { capture: true });
