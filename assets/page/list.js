// The list of chats: one tab stop with arrow keys inside, and the next page of it as its end comes near. What is open is
// marked here: the server draws the list only where it changed.
const titles = () => [...document.querySelectorAll('#hc-list .hc-title')];
const keyOf = (title) => title.dataset.act + title.dataset.id;
let stop = null; // the chat or project on which the tab stop is

function rove() {
  const all = titles();
  const active = document.activeElement;
  const here = all.find((title) => keyOf(title) === stop);
  const home = here || all.find((title) => title.getAttribute('aria-current')) || all[0];
  // Only where it differs: what is set here is looked at again.
  all.forEach((title) => { if ((title.tabIndex === 0) !== (title === home)) title.tabIndex = title === home ? 0 : -1; });
  // An update changes what stands in a row; the focus stays with its chat.
  if (here && active !== here && active?.matches('#hc-list .hc-title')) here.focus({ preventScroll: true });
}

function markOpen() {
  const open = /^(?:incognito )?([1-9]\d*)$/.exec(place())?.[1];
  for (const title of titles()) {
    const is = title.dataset.act === 'hc_open' && title.dataset.id === open;
    title.closest('li').classList.toggle('hc-current', is);
    title.toggleAttribute('aria-current', is);
    if (is) title.setAttribute('aria-current', 'page');
  }
}
onPlace.push(markOpen);

const coming = new IntersectionObserver((entries) => {
  if (entries.some((entry) => entry.isIntersecting)) trigger('hc_more', {});
}, { rootMargin: '0px 0px 600px 0px' });

when('#hc-list', (list) => {
  const renew = () => {
    markOpen();
    rove();
    coming.disconnect();
    const more = list.querySelector('.hc-more');
    if (more) coming.observe(more);
  };
  renew();
  changes(list, renew, { childList: true, subtree: true, attributes: true, attributeFilter: ['data-id', 'tabindex'] });
});

// The chat that is written in comes to the top of the list, and the list back to its first page.
onBusy.push((writing, begins) => { if (begins) find('#hc-list').scrollTop = 0; });

on('focusin', (event) => {
  const title = event.target.closest('#hc-list .hc-title');
  if (!title) return;
  stop = keyOf(title);
  titles().forEach((other) => { if (other.tabIndex === 0 && other !== title) other.tabIndex = -1; });
  title.tabIndex = 0;
});

on('keydown', (event) => {
  const row = event.target.closest('#hc-list li');
  if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
  const all = titles();
  const at = all.indexOf(row.querySelector('.hc-title'));
  const inside = [...row.querySelectorAll(':scope > button, :scope > span button')];
  const place = inside.indexOf(event.target);
  const to = {
    ArrowDown: all[at + 1], ArrowUp: all[at - 1], Home: all[0], End: all[all.length - 1],
    ArrowRight: inside[place + 1], ArrowLeft: inside[place - 1],
  }[event.key];
  const does = { F2: rename, Delete: event.repeat ? null : remove }[event.key];
  if (to) to.focus();
  if (does) does(row.querySelector('.hc-title')); // a project's own stands before those of its chats
  if (to || does) event.preventDefault();
});

acts.hc_open = ({ id, text }) => {
  goToChat('hc_open', id, { text });
  lookFor(id, text);
  leaveSidebar();
};
on('click', (event) => event.target.closest('#hc-list .hc-snippet')?.closest('li').querySelector('.hc-title').click());

function rename(title) {
  if (title.matches('.hc-folder')) return void editProject(projectOf(title.dataset.id));
  ask({ title: _('Rename this chat'), value: title.textContent, action: _('Rename') },
    (given) => numbered('hc_rename', { id: Number(title.dataset.id), text: given }));
}

// Without a question: the line below the list takes it back.
function remove(title) {
  trigger(title.matches('.hc-folder') ? 'hc_project_delete' : 'hc_delete', { id: Number(title.dataset.id) });
  const [all, at] = [titles(), titles().indexOf(title)];
  if (title === document.activeElement) (all[at + 1] || all[at - 1])?.focus();
}
