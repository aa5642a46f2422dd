// Everything of this user goes: asked twice, the second time by a word.
const WORD = _('forget');

acts.hc_forget = ({ text }) => sure({
  title: _('Forget everything?'),
  said: _('{what} will be deleted for good, with all that was learned from them. Only a backup can bring them back.', { what: text }),
  action: _('Go on'),
}, () => setTimeout(() => ask({ title: _('Type “{word}” to delete {what}', { word: WORD, what: text }), value: '', action: _('Delete') }, (given) => {
  if (given.toLowerCase() !== WORD) return;
  for (const key of Object.keys(sessionStorage)) if (key.startsWith(UNSENT)) sessionStorage.removeItem(key);
  trigger('hc_forget', {});
})));
