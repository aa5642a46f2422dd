// What a hurried visitor does (test_races.py), each in one go, and a note of it in the tab's storage; and what a tab shows.
(() => {
  if (!location.protocol.startsWith('http')) return;
  const KEY = 'races';
  const find = (selector) => document.querySelector(selector);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const note = (did, more = {}) => {
    const entry = { did, ...more };
    sessionStorage.setItem(KEY, JSON.stringify([...JSON.parse(sessionStorage.getItem(KEY) || '[]'), entry]));
    return entry;
  };
  note('loaded', { search: location.search });
  window.addEventListener('popstate', () => note('went', { search: location.search }));

  let underway = 0;
  const fetched = window.fetch;
  window.fetch = (...given) => {
    underway += 1;
    return fetched(...given).finally(() => { underway -= 1; });
  };

  const there = (element) => Boolean(element?.checkVisibility() && !element.closest('[inert]'));
  const box = () => find('#hc-box textarea');
  const some = (list, share) => list[Math.floor(share * list.length)];
  const chats = () => all('#hc-list .hc-title[data-act=hc_open]').filter(there);
  const onItsWay = () => document.body.hasAttribute('data-hc-to');
  const key = (name) => new KeyboardEvent('keydown', { key: name, bubbles: true, cancelable: true });
  const write = (field, text) => {
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
    document.execCommand('insertText', false, text);
  };
  const pressed = (element, did, more) => {
    if (!there(element)) return null;
    element.click();
    return note(did, more);
  };
  const typed = (word) => {
    if (!there(box())) return null;
    const before = box().value;
    write(box(), before ? ` ${word}` : word);
    return note('typed', { word, before });
  };
  const sent = (word) => {
    if (!typed(word)) return null;
    const text = box().value;
    box().dispatchEvent(new KeyboardEvent('keypress', { key: 'Enter', bubbles: true, cancelable: true }));
    return note('sent', { text });
  };
  const back = (by) => {
    if (!there(find('#hc-links')) || !(by < 0 ? navigation.canGoBack : navigation.canGoForward)) return null;
    history.go(by);
    return { did: 'history', by };
  };

  // Each gets a share of one, by which it chooses, and a word that occurs nowhere else.
  const steps = {
    send: (_, word) => sent(word),
    send_and_new: (_, word) => sent(word) && pressed(find('#hc-new'), 'new'),
    new: () => pressed(find('#hc-new'), 'new'),
    open: (share) => {
      const way = some(chats(), share);
      return pressed(way, 'opened', { id: Number(way?.dataset.id) });
    },
    panel: (share) => {
      const way = some(all('#hc-links button'), share);
      return pressed(way, 'view', { name: way?.dataset.text });
    },
    back: () => back(-1),
    forward: () => back(1),
    stop: () => pressed(find('#hc-stop'), 'stopped'),
    delete: (share) => {
      const way = some(chats(), share);
      if (chats().length < 4) return null;
      const entry = note('deleted', { id: Number(way.dataset.id), title: way.textContent });
      way.dispatchEvent(key('Delete'));
      return entry;
    },
    undo: () => {
      const way = find('#hc-undo')?.hidden ? null : find('#hc-undo [data-act=hc_restore]');
      return pressed(way, 'undone', { id: Number(way?.dataset.id) });
    },
    rename: (share, word) => {
      const way = some(chats(), share);
      if (!way) return null;
      way.dispatchEvent(key('F2'));
      const form = find('dialog.hc-dialog form');
      form.querySelector('input').value = word;
      form.requestSubmit();
      return note('renamed', { id: Number(way.dataset.id), title: word });
    },
    again: (share) => {
      if (onItsWay()) return null;
      const way = some(all('#hc-thread [data-act=hc_again]').filter((one) => one.checkVisibility({ checkOpacity: false })), share);
      return pressed(way, 'again', { id: Number(way?.dataset.id) });
    },
    edit: (share, word) => {
      if (onItsWay()) return null;
      const way = some(all('#hc-thread [data-act=hc_edit]'), share);
      if (!there(way)) return null;
      way.click();
      const editor = way.closest('.hc-turn').shadowRoot;
      editor.querySelector('textarea').value = word;
      editor.querySelector('form').requestSubmit();
      if (!editor.querySelector('form')) return note('edited', { word });
      editor.querySelector('button[type=button]').click(); // a reply is written there
      return null;
    },
    type: (_, word) => typed(word),
  };

  const text = (selector) => all(selector).map((one) => one.textContent.replace(/\s+/g, ' ').trim());
  const buttons = (selector) => all(`${selector} [data-act]`).map(({ dataset }) => `${dataset.act} ${dataset.id} ${dataset.text ?? ''}`);
  // What every tab of the user has to show alike at an address.
  const screen = () => {
    const stage = all('#hc-empty, #hc-chat, #hc-versus, .hc-panel').filter((one) => one.checkVisibility()).map((one) => one.id);
    const talks = stage.includes('hc-chat');
    return {
      address: location.search,
      title: text('#hc-title'),
      stage,
      thread: talks ? text('#hc-chat .hc-turn') : [],
      'buttons of the thread': talks ? buttons('#hc-thread') : [],
      list: all('#hc-list :is(h2, li)').map((one) => (one.matches('h2') ? one.textContent : [
        one.querySelector('.hc-title').textContent, one.querySelector('.hc-title').dataset.id, one.className,
        one.querySelector('.hc-title').getAttribute('aria-current'), one.querySelector('.hc-mark').className,
      ].map(String).join(' | '))),
      views: all('#hc-links [aria-current]').map((one) => one.textContent),
      'waiting messages': text('#hc-tray'),
      writes: find('#hc-stop').checkVisibility(),
    };
  };
  // What is this tab's own.
  const own = () => ({
    box: box()?.value ?? '',
    unsent: Object.fromEntries(Object.entries(sessionStorage).filter(([name]) => name.startsWith('hc-unsent-'))
      .map(([name, kept]) => [name.slice('hc-unsent-'.length), kept])),
    line: text('#hc-live').join(' '),
  });
  // Why it does not rest yet; empty when it does.
  const waits = () => [
    find('#hc-list nav') ? '' : 'no list', there(find('#hc-links')) ? '' : 'not usable', underway ? `${underway} events` : '',
    onItsWay() ? 'on its way' : '', document.body.hasAttribute('data-hc-busy') ? 'a reply' : '',
  ].filter(Boolean).join(', ');
  const log = () => {
    const noted = JSON.parse(sessionStorage.getItem(KEY) || '[]');
    sessionStorage.removeItem(KEY);
    return noted;
  };
  window.races = { step: (name, share, word) => steps[name](share, word), screen, own, waits, log };
})();
