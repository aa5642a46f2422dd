// A reply in progress that this page does not follow yet: another tab asked for it, or this one before it was loaded anew.
when('#hc-cue', (cue) => {
  let followed;
  const look = () => {
    const number = cue.querySelector('[data-reply]')?.dataset.reply;
    if (number && number !== followed) trigger('hc_follow', {});
    followed = number;
  };
  look();
  changes(cue, look, { childList: true, subtree: true, attributes: true, attributeFilter: ['data-reply'] });
});
